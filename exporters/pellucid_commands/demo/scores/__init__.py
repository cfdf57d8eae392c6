"""`pellucid demo scores`: an agent that a worse prompt spoils, and how scores show it."""
