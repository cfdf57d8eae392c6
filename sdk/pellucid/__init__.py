"""See through your agents: every discovery, compose, LLM call and dispatch is one OpenTelemetry span."""

__version__ = "0.1.0"
