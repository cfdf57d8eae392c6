"""`pellucid alerts relay`: add links to traces to alerts between Prometheus and Alertmanager."""
