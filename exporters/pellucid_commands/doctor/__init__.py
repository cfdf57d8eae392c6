"""`pellucid doctor`: check that telemetry is configured, exported and received, and name remedies."""
