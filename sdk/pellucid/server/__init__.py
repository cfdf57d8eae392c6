"""HTTP server of durable runs (extra `server`), as an ASGI application."""

from pellucid.server.app import create_app
from pellucid.server.callers import Authenticate, bearer, loopback_only

__all__ = ["Authenticate", "bearer", "create_app", "loopback_only"]
