"""State and events of a durable run for callers, callbacks and queues, also as JSON; its metrics."""
