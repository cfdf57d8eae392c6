"""`pellucid serve` and `pellucid worker`: durable runs of an application's agents."""
