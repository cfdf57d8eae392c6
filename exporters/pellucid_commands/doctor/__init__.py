"""`pellucid doctor`: whether telemetry is set up, leaves the process and arrives, and what to do where it does not."""
