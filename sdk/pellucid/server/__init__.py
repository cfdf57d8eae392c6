"""HTTP servers of durable runs, and of runs without a store (extra `server`), as ASGI applications."""

from pellucid.server.agent_app import create_agent_app
from pellucid.server.app import create_app
from pellucid.server.callers import Authenticate, bearer, loopback_only
from pellucid.server.draining import drain_at_signals

__all__ = ["Authenticate", "bearer", "create_agent_app", "create_app", "drain_at_signals", "loopback_only"]
