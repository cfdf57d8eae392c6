"""OTLP: exporters, and delivery that bounds requests, counts failures and survives a fork."""
