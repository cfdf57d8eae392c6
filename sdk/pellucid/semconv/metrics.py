"""The instruments of agents, with their labels and buckets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from pellucid.semconv.names import (
    AGENT_NAME,
    AGENT_VERSION,
    ASYNC_STATUS,
    DISCOVERY_CACHE,
    ERROR_TYPE,
    HUB_OWNER,
    HUB_RUNBOOK,
    MCP_METHOD_NAME,
    MCP_PROTOCOL_VERSION,
    METRIC_NAME,
    NETWORK_PROTOCOL_NAME,
    NETWORK_PROTOCOL_VERSION,
    NETWORK_TRANSPORT,
    OPERATION,
    OPERATION_NAME,
    OUTCOME,
    PHASE,
    PROVIDER_ID,
    PROVIDER_KIND,
    PROVIDER_NAME,
    RELIABILITY_KIND,
    RELIABILITY_THEN,
    REQUEST_MODEL,
    RESPONSE_MODEL,
    RPC_RESPONSE_STATUS_CODE,
    SAMPLING_EARLY,
    SAMPLING_REASON,
    SERVER_ADDRESS,
    SERVER_PORT,
    STOP_REASON,
    TELEMETRY_PART,
    TELEMETRY_REASON,
    TOKEN_TYPE,
    TOOL_NAME,
    TOOL_SOURCE,
    TOOL_TYPE,
)

CLIENT_BUCKETS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
MCP_BUCKETS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One instrument.

    Attributes:
        kind: `histogram`, `counter`, `updown` or `gauge`.
        unit: Unit, in UCUM.
        name: Name of the instrument.
        description: Description of the instrument.
        attributes: Names of its labels.
        buckets: Upper bounds, inclusive.
    """

    kind: str
    unit: str
    name: str
    description: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_duration: Final = partial(Metric, "histogram", "s")
_histogram: Final = partial(Metric, "histogram")
_counter: Final = partial(Metric, "counter")
_updown: Final = partial(Metric, "updown")
_gauge: Final = partial(Metric, "gauge")

DISCOVERY_DURATION: Final = _duration(
    "pellucid.tool.discovery.duration",
    "Time that a run waited for a tool provider's list.",
    (PROVIDER_ID, PROVIDER_KIND, DISCOVERY_CACHE, ERROR_TYPE),
    (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
DISCOVERY_OBJECTIVE: Final = _gauge(
    "s", "pellucid.tool.discovery.objective", "Latency objective that a tool provider declared.", (PROVIDER_ID,)
)
DISCOVERY_TTL: Final = _gauge(
    "s", "pellucid.tool.discovery.ttl", "Lifetime of the catalogues that a tool provider caches.", (PROVIDER_ID,)
)
DISCOVERY_OVER_OBJECTIVE: Final = _counter(
    "{discovery}",
    "pellucid.tool.discovery.over_objective",
    "Discoveries that took longer than the objective which their tool provider declared.",
    DISCOVERY_DURATION.attributes,
)
HUB_LISTING_DURATION: Final = _duration(
    "pellucid.hub.listing.duration",
    "Time from a request for a hub's tools to the answer, or until the request was given up.",
    (PROVIDER_ID, PROVIDER_KIND, OUTCOME, ERROR_TYPE),
    (*DISCOVERY_DURATION.buckets, 120.0, 300.0, 600.0, 1800.0),
)
HUB_OVER_OBJECTIVE: Final = _counter(
    "{request}",
    "pellucid.hub.over_objective",
    "Requests for a hub's tools that took longer than its objective, less the delay of the event loop.",
    HUB_LISTING_DURATION.attributes,
)
HUB_INFO: Final = _gauge(
    "{hub}",
    "pellucid.hub.info",
    "Always 1: who owns a hub, its runbook, and its address, as far as its provider declares them.",
    (PROVIDER_ID, HUB_OWNER, HUB_RUNBOOK, SERVER_ADDRESS, SERVER_PORT),
)
HUB_SLO: Final = _gauge(
    "1", "pellucid.hub.slo", "Share of a hub's requests that should meet its objective, as declared.", (PROVIDER_ID,)
)
HUB_STREAK: Final = _gauge(
    "{request}", "pellucid.hub.over_objective.streak", "Latest consecutive requests over the objective.", (PROVIDER_ID,)
)
HUB_UNANSWERED_AGE: Final = _gauge(
    "s", "pellucid.hub.unanswered.age", "Time since a hub's first unanswered request; 0 without one.", (PROVIDER_ID,)
)
WAKEUP_DELAY: Final = _duration(
    "pellucid.runtime.wakeup.delay",
    "Time from the answer of a hub to the moment at which the event loop resumed the run that waited for it.",
    (),
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
DISCOVERY_PENDING_DURATION: Final = _duration(
    "pellucid.tool.discovery.pending.duration",
    "Time of round trips that outlasted the patience of a discovery.",
    (PROVIDER_ID, ERROR_TYPE),
    (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0),
)
DISCOVERY_INFLIGHT: Final = _updown(
    "{fetch}", "pellucid.tool.discovery.inflight", "Discovery fetches under way.", (PROVIDER_ID,)
)
DISCOVERY_INFLIGHT_AGE: Final = _gauge(
    "s", "pellucid.tool.discovery.inflight.age", "Age of the oldest fetch in flight; 0 without one.", (PROVIDER_ID,)
)
DISCOVERY_LAST_SUCCESS: Final = _gauge(
    "s", "pellucid.tool.discovery.last_success", "Unix time of a hub's last successful round trip.", (PROVIDER_ID,)
)
CATALOG_SIZE: Final = _gauge(
    "{tool}", "pellucid.tool.catalog.size", "Tools in a provider's latest catalogue.", (PROVIDER_ID,)
)
CATALOG_CHANGES: Final = _counter(
    "{change}", "pellucid.tool.catalog.changes", "Times a provider's catalogue changed its content.", (PROVIDER_ID,)
)
COMPOSE_DURATION: Final = _duration(
    "pellucid.compose.duration",
    "Time to compose a model request.",
    (AGENT_NAME,),
    (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)
_CLIENT = (OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL, RESPONSE_MODEL, SERVER_ADDRESS, SERVER_PORT)
OPERATION_DURATION: Final = _duration(
    "gen_ai.client.operation.duration", "Duration of a model call.", (*_CLIENT, ERROR_TYPE), CLIENT_BUCKETS
)
TIME_TO_FIRST_CHUNK: Final = _duration(
    "gen_ai.client.operation.time_to_first_chunk",
    "Time until a streamed model call delivered its first chunk.",
    _CLIENT,
    CLIENT_BUCKETS,
)
TIME_PER_OUTPUT_CHUNK: Final = _duration(
    "gen_ai.client.operation.time_per_output_chunk",
    "Time between two chunks of a streamed model call.",
    _CLIENT,
    CLIENT_BUCKETS,
)
TOKEN_USAGE: Final = _histogram(
    "{token}",
    "gen_ai.client.token.usage",
    "Tokens of a model call; unknown usage is not recorded.",
    (*_CLIENT, TOKEN_TYPE),
    tuple(float(4**n) for n in range(14)),
)
PROMPT_CACHE_SHARE: Final = _histogram(
    "1",
    "pellucid.prompt_cache.share",
    "Share of a model call's input tokens that came from the vendor's prompt cache.",
    (PROVIDER_NAME, REQUEST_MODEL),
    (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
)
COST: Final = _counter(
    "{USD}", "pellucid.cost", "Cost of model calls, as far as their prices are known.", (PROVIDER_NAME, REQUEST_MODEL)
)
TOOL_DURATION: Final = _duration(
    "gen_ai.execute_tool.duration",
    "Duration of a tool call.",
    (TOOL_NAME, TOOL_TYPE, AGENT_NAME, PROVIDER_ID, TOOL_SOURCE, ERROR_TYPE),
    CLIENT_BUCKETS,
)
_NETWORK = (NETWORK_TRANSPORT, NETWORK_PROTOCOL_NAME, NETWORK_PROTOCOL_VERSION)
_MCP = (MCP_PROTOCOL_VERSION, *_NETWORK, SERVER_ADDRESS, SERVER_PORT, ERROR_TYPE)
MCP_OPERATION_DURATION: Final = _duration(
    "mcp.client.operation.duration",
    "Time from an MCP request to its answer.",
    (MCP_METHOD_NAME, OPERATION_NAME, TOOL_NAME, *_MCP, RPC_RESPONSE_STATUS_CODE),
    MCP_BUCKETS,
)
MCP_SESSION_DURATION: Final = _duration(
    "mcp.client.session.duration", "Time that a connection to an MCP server was open.", _MCP, MCP_BUCKETS
)
MCP_CONNECT_DURATION: Final = _duration(
    "pellucid.mcp.connect.duration",
    "Time to connect to an MCP server: from the opening of the transport to the end of the handshake.",
    (PROVIDER_ID, PROVIDER_KIND, ERROR_TYPE),
    MCP_BUCKETS,
)
AGENT_DURATION: Final = _duration(
    "gen_ai.invoke_agent.duration",
    "Duration of a run.",
    (AGENT_NAME, AGENT_VERSION, REQUEST_MODEL, ERROR_TYPE),
    (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6),
)
_CALLS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
INFERENCE_CALLS: Final = _histogram(
    "{inference_call}",
    "gen_ai.invoke_agent.inference_calls",
    "Model calls of a run, without those of agents that are its tools.",
    (AGENT_NAME, AGENT_VERSION, REQUEST_MODEL),
    _CALLS,
)
TOOL_CALLS: Final = _histogram(
    "{tool_call}",
    "gen_ai.invoke_agent.tool_calls",
    "Tool calls of a run, without those of agents that are its tools and those that a vendor makes.",
    (AGENT_NAME, AGENT_VERSION, REQUEST_MODEL),
    _CALLS,
)
RUN_ITERATIONS: Final = _histogram(
    "{iteration}",
    "pellucid.run.iterations",
    "Iterations of a run.",
    (AGENT_NAME, STOP_REASON),
    (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0),
)
RUN_FAILURES: Final = _counter(
    "{run}", "pellucid.run.failures", "Failed runs, by the phase that failed.", (AGENT_NAME, PHASE, ERROR_TYPE)
)
APPROVAL_PENDING: Final = _updown(
    "{approval}", "pellucid.approval.pending", "Tool calls that wait for a person to approve of them.", (TOOL_NAME,)
)
APPROVAL_WAIT: Final = _duration(
    "pellucid.approval.wait",
    "Time from the request for an approval to the decision.",
    (TOOL_NAME,),
    (1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0, 86400.0),
)
EXTERNAL_PENDING: Final = _updown(
    "{call}", "pellucid.external.pending", "Asynchronous tool calls without a result.", (TOOL_NAME,)
)
EXTERNAL_WAIT: Final = _duration(
    "pellucid.external.wait",
    "Time from the dispatch of an asynchronous tool call to its result.",
    (TOOL_NAME, ASYNC_STATUS),
    (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0, 86400.0),
)
EXTERNAL_LATE: Final = _counter(
    "{result}",
    "pellucid.external.late",
    "Results of asynchronous calls that had expired or been stopped.",
    (TOOL_NAME,),
)
RELIABILITY_DECISIONS: Final = _counter(
    "{decision}",
    "pellucid.reliability.decisions",
    "What reliability rules had done: tried again, recovered, fell back, failed fast.",
    (OPERATION, RELIABILITY_THEN, RELIABILITY_KIND),
)
CIRCUIT_STATE: Final = _gauge(
    "1",
    "pellucid.circuit.state",
    "State of a circuit breaker: 0 closed, 1 half-open, 2 open.",
    (PROVIDER_ID, TOOL_NAME, REQUEST_MODEL),
)
TELEMETRY_ERRORS: Final = _counter(
    "{error}",
    "pellucid.telemetry.errors",
    "Faults inside listeners, processors, serialisers and exporters; none of them reached a run.",
    (TELEMETRY_PART,),
)
TELEMETRY_DROPPED: Final = _counter(
    "{item}",
    "pellucid.telemetry.dropped",
    "Telemetry items that were lost, by the reason: a full queue, a failed export, or a receiver that rejected them.",
    (TELEMETRY_PART, TELEMETRY_REASON),
)
TELEMETRY_OVERFLOWS: Final = _counter(
    "{instrument}",
    "pellucid.telemetry.overflows",
    "Instruments that have reached their limit of series in this process; further label sets share one series.",
    (METRIC_NAME,),
)
SAMPLED_OUT: Final = _counter(
    "{span}", "pellucid.telemetry.sampled_out", "Spans of runs that the tail sampler did not keep."
)
SAMPLING_DECISIONS: Final = _counter(
    "{run}",
    "pellucid.telemetry.sampling.decisions",
    "Runs that the tail sampler has decided.",
    (SAMPLING_REASON, SAMPLING_EARLY),
)

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""Instruments of agents, in the order of this file."""
