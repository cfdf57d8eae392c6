"""The page of a run: overview, waterfall, conversation, and a panel for one span."""
