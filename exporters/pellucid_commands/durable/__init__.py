"""`pellucid durable`: look at the durable runs of a store, and mend them."""
