"""Tail sampling: rules, the processor that applies them, and filtering of exemplars."""
