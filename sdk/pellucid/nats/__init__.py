"""NATS JetStream for durable runs: wakes workers, spreads runs over machines, and streams events to clients."""

from pellucid.nats.options import StreamLimits
from pellucid.nats.queue import NATSQueue

__all__ = ["NATSQueue", "StreamLimits"]
