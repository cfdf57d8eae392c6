"""Pauses of a run: approvals, calls outside, calls in the background, the journal."""
