"""What callers, callbacks and queues know of a durable run: its state and events, also as JSON; its metrics."""
