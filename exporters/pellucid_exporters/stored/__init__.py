"""Stored telemetry as every reader sees it: rows, the content of a run, two runs compared."""
