"""Recorder of metrics: instruments that bring measurements into the SDK's storage many at a time."""
