"""Delivery of runs to callback URLs, signed by the Standard Webhooks specification."""
