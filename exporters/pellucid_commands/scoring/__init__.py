"""Scores of recorded runs: `pellucid score`."""
