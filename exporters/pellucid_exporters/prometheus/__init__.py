"""`/metrics`: readers, metric families, formats and the endpoint that serves them."""
