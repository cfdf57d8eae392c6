"""Providers of ours for other frameworks, and tools of theirs for us; each module needs its framework."""
