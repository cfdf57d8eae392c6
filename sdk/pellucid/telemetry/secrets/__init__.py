"""Secrets in texts: the search, and tables of names and formats of secrets."""
