"""Delivery of runs to callback URLs, signed by the Standard Webhooks specification."""

from pellucid.durable_runs.callbacks.options import Callbacks
from pellucid.durable_runs.callbacks.signatures import verify_callback

__all__ = ["Callbacks", "verify_callback"]
