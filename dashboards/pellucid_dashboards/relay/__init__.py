"""`pellucid alerts relay`: alerts get the link to a trace on their way from Prometheus to Alertmanager."""
