"""`pellucid demo`: a real run on real hubs, one of them slow and, once, down."""
