"""HTTP servers of durable runs, and of runs without a store (extra `server`), as ASGI applications."""

from pellucid.server.agent_app import create_agent_app
from pellucid.server.app import create_app
from pellucid.server.callers import Authenticate, bearer, loopback_only

__all__ = ["Authenticate", "bearer", "create_agent_app", "create_app", "loopback_only"]
