"""Pieces of the answers of durable runs, on their way from the worker to readers; they are not stored."""
