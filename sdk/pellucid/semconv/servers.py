"""Names of what an instrumented MCP server emits; a program without one does not load them."""

from __future__ import annotations

from typing import Final

from pellucid.semconv.budgets import BUDGET_METRICS
from pellucid.semconv.compaction import COMPACTION_METRICS
from pellucid.semconv.durable import DURABLE_METRICS
from pellucid.semconv.metrics import MCP_BUCKETS, METRICS, Metric
from pellucid.semconv.names import (
    ERROR_TYPE,
    MCP_METHOD_NAME,
    MCP_PROTOCOL_VERSION,
    MCP_SERVER_NAME,
    MCP_SERVER_VERSION,
    NETWORK_PROTOCOL_NAME,
    NETWORK_TRANSPORT,
    OPERATION_NAME,
    RPC_RESPONSE_STATUS_CODE,
    TOOL_NAME,
)
from pellucid.semconv.scores import SCORE_METRICS
from pellucid.semconv.tool_locks import TOOL_LOCK_METRICS

STREAMS: Final = ("subscriptions/listen", "tasks/result")
"""Values of `mcp.method.name` of requests that stay open by design, however fast the server is."""

_SERVER = (MCP_SERVER_NAME, MCP_SERVER_VERSION, MCP_PROTOCOL_VERSION, NETWORK_TRANSPORT, NETWORK_PROTOCOL_NAME)

SERVER_OPERATION_DURATION: Final = Metric(
    "histogram",
    "s",
    "mcp.server.operation.duration",
    "Time from the arrival of an MCP message at the server to its result.",
    (MCP_METHOD_NAME, OPERATION_NAME, TOOL_NAME, *_SERVER, ERROR_TYPE, RPC_RESPONSE_STATUS_CODE),
    MCP_BUCKETS,
)
SERVER_SESSION_DURATION: Final = Metric(
    "histogram",
    "s",
    "mcp.server.session.duration",
    "Time that a session with an MCP client was open at the server.",
    (*_SERVER, ERROR_TYPE),
    MCP_BUCKETS,
)
SERVER_SESSIONS: Final = Metric(
    "updown", "{session}", "pellucid.mcp.server.sessions", "Sessions with MCP clients.", (MCP_SERVER_NAME,)
)
SERVER_INFLIGHT: Final = Metric(
    "updown",
    "{request}",
    "pellucid.mcp.server.inflight",
    "MCP requests that the server works on.",
    (MCP_SERVER_NAME,),
)
SERVER_INFLIGHT_AGE: Final = Metric(
    "gauge",
    "s",
    "pellucid.mcp.server.inflight.age",
    "Age of the oldest MCP request that the server works on; 0 when there is none.",
    (MCP_SERVER_NAME, MCP_METHOD_NAME, TOOL_NAME),
)
SERVER_OBJECTIVE: Final = Metric(
    "gauge",
    "s",
    "pellucid.mcp.server.objective",
    "Latency objective that an MCP server declared for its requests.",
    (MCP_SERVER_NAME,),
)
SERVER_OVER_OBJECTIVE: Final = Metric(
    "counter",
    "{request}",
    "pellucid.mcp.server.over_objective",
    "MCP requests that took longer than the objective of their server.",
    (MCP_SERVER_NAME, MCP_METHOD_NAME, TOOL_NAME),
)

SERVER_METRICS: Final = (
    SERVER_OPERATION_DURATION,
    SERVER_SESSION_DURATION,
    SERVER_SESSIONS,
    SERVER_INFLIGHT,
    SERVER_INFLIGHT_AGE,
    SERVER_OBJECTIVE,
    SERVER_OVER_OBJECTIVE,
)
"""Instruments of instrumented MCP servers."""

ALL_METRICS: Final = (
    *METRICS,
    *COMPACTION_METRICS,
    *BUDGET_METRICS,
    *DURABLE_METRICS,
    *TOOL_LOCK_METRICS,
    *SCORE_METRICS,
    *SERVER_METRICS,
)
"""Instruments of agents, of their windows and budgets, of durable runs, and of servers."""
