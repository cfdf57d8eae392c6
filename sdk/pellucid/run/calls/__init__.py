"""Calls of tools: what a call is, and the chain of links that it passes through."""
