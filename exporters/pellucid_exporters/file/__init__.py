"""Telemetry as JSON Lines in a file: what a line holds, how lines get there whole, and when a new file is begun."""
