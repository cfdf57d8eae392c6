"""Runs of agents on the store: submit, work, decide, settle."""
