"""Alerts as Prometheus rules and local stores share them: limits, windows, and words."""
