"""HTTP servers of durable runs, and of runs without a store (extra `server`), as ASGI applications."""

from pellucid.server.agent_app import create_agent_app
from pellucid.server.app import create_app
from pellucid.server.callers import Authenticate, bearer, loopback_only
from pellucid.server.draining import drain_at_signals
from pellucid.server.rates import RequestRate
from pellucid.server.rights import Action, Authorize, Caller, by_role, four_eyes, owner_only, same_tenant
from pellucid.server.run_streams import EventStreamResponse, cancel_on_disconnect

__all__ = [
    "Action",
    "Authenticate",
    "Authorize",
    "Caller",
    "EventStreamResponse",
    "RequestRate",
    "bearer",
    "by_role",
    "cancel_on_disconnect",
    "create_agent_app",
    "create_app",
    "drain_at_signals",
    "four_eyes",
    "loopback_only",
    "owner_only",
    "same_tenant",
]
