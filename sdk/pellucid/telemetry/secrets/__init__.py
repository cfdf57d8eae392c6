"""Secrets in texts: the search, and the tables of what a secret looks like."""
