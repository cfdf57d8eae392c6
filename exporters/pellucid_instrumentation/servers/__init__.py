"""Telemetry of MCP servers: a span and a measurement of each request, sessions, and what is in flight."""
