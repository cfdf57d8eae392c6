"""Outcomes that count as a failure, a refusal and a round trip."""

from __future__ import annotations

from typing import Final

from pellucid.semconv.servers import STREAMS

REFUSALS: Final = (
    "approval",
    "approval_denied",
    "approval_expired",
    "budget",
    "max_cost",
    "max_discoveries",
    "max_model_calls",
    "max_tokens",
    "max_tool_calls",
    "permission_denied",
    "policy_halt",
    "repeated_call_id",
    "tool_not_active",
    "tool_redefined",
    "tool_removed",
    "unknown_tool",
)
"""Values of `error.type` of tool calls that were not made, because a person, a policy or a limit rejected them, or
because there is no such tool: they are neither failures nor calls."""

HALTED: Final = "policy_halt"
"""Value of `error.type` of runs that the permission policy halted; a halted run is not a failed one."""

UNASKED: Final = ("backoff", "circuit_open")
"""Values of `error.type` of discoveries that made no request to the hub."""

ASKED: Final = ("miss", "none")
"""Values of `pellucid.discovery.cache` of discoveries that make a request to the hub; a cached catalogue does not
describe it."""

UNANSWERED: Final = ("timeout", "abandoned")
"""Values of `pellucid.outcome` of requests to hubs that got no answer."""

BROKEN: Final = ("failed", "timeout")
"""Values of `pellucid.outcome` of requests to hubs that failed."""

COMBINED: Final = "combined"
"""Kind of tool providers that are excluded: their parts have their own telemetry, and would be counted twice."""

UNDELIVERED: Final = ("expired", "failed")
"""Values of `pellucid.async_tool.status` of results that are failures, or did not arrive before the deadline."""

OPEN_BY_DESIGN: Final = ("notifications/.*", *STREAMS)
"""Values of `mcp.method.name` of messages that a server does not answer at once, as regular expressions."""

NOT_SERVED: Final = ("cancelled", "-32700", "-32600", "-32601", "-32602")
"""Values of `error.type` of requests to a server that the client cancelled, or had made wrong."""
