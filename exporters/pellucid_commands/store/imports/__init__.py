"""Import of other stores, recordings and OTLP in JSON into a store, by the writer that a process has.

What the store has already is left alone, so that a file can be imported again when it has grown.
"""
