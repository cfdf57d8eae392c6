"""Tail sampling: the rules, the processor that applies them, and exemplars of traces that were kept."""
