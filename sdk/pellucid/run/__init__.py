"""One run of an agent: the loop, its four phases and its state."""
