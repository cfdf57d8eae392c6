"""Telemetry as JSON Lines in a file: records, atomic appends, and rotation."""
