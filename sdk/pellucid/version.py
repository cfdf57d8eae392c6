"""The version of this distribution, which is also that of its instrumentation scope."""

__version__ = "0.1.0"
