"""NATS JetStream for durable runs: wakes workers, spreads runs over machines, and streams events to clients."""
