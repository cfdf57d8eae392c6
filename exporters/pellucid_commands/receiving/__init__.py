"""Intake of OTLP over HTTP into a local store. What is acknowledged is in the store; nothing is dropped silently."""
