"""Telemetry in a local SQLite file: runs, spans, contents, minutes of hubs, events and boundaries in flight."""
