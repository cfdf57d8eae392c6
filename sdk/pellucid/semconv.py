"""Every name that Pellucid emits: spans, attributes, metrics, buckets.

Dashboards, alert rules, exporters and tests import from here; nothing else spells a name out.
`gen_ai.*`, `mcp.*`, `openai.*`, `error.*`, `server.*` are the OpenTelemetry conventions' own (GenAI and MCP,
release 1.41 with names that were agreed on since, development status); what those lack lives under `pellucid.*`.
No published schema has all of these names, so there is no schema URL.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

SCOPE: Final = "pellucid"

# --- phases, operations, outcomes -------------------------------------------------------------------------------------

RUN: Final = "run"
DISCOVERY: Final = "discovery"
COMPOSE: Final = "compose"
INFERENCE: Final = "inference"
DISPATCH: Final = "dispatch"
AWAIT: Final = "await"

EXCEPTION_EVENT: Final = "gen_ai.client.operation.exception"
"""Name of the log record of an exception that ended a model call."""

INVOKE_AGENT: Final = "invoke_agent"
DISCOVER_TOOLS: Final = "discover_tools"
COMPOSE_REQUEST: Final = "compose_request"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
AWAIT_TOOL: Final = "await_tool"

COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
TIMEOUT: Final = "timeout"

OTHER: Final = "_OTHER"
"""Label of a tool name that the model invented."""

# --- attributes of the conventions ------------------------------------------------------------------------------------

ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
NETWORK_TRANSPORT: Final = "network.transport"
NETWORK_PROTOCOL_NAME: Final = "network.protocol.name"
NETWORK_PROTOCOL_VERSION: Final = "network.protocol.version"

OPERATION_NAME: Final = "gen_ai.operation.name"
PROVIDER_NAME: Final = "gen_ai.provider.name"
AGENT_NAME: Final = "gen_ai.agent.name"
AGENT_DESCRIPTION: Final = "gen_ai.agent.description"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_STREAM: Final = "gen_ai.request.stream"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_TOP_K: Final = "gen_ai.request.top_k"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
REQUEST_STOP_SEQUENCES: Final = "gen_ai.request.stop_sequences"
REQUEST_REASONING_LEVEL: Final = "gen_ai.request.reasoning.level"
OUTPUT_TYPE: Final = "gen_ai.output.type"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
USAGE_CACHE_WRITE_INPUT_TOKENS: Final = "gen_ai.usage.cache_write.input_tokens"
USAGE_REASONING_OUTPUT_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
USAGE_TEXT_INPUT_TOKENS: Final = "gen_ai.usage.text.input_tokens"
USAGE_TEXT_OUTPUT_TOKENS: Final = "gen_ai.usage.text.output_tokens"
USAGE_TEXT_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.text.cache_read.input_tokens"
USAGE_IMAGE_INPUT_TOKENS: Final = "gen_ai.usage.image.input_tokens"
USAGE_IMAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.image.output_tokens"
USAGE_IMAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.image.cache_read.input_tokens"
USAGE_AUDIO_INPUT_TOKENS: Final = "gen_ai.usage.audio.input_tokens"
USAGE_AUDIO_OUTPUT_TOKENS: Final = "gen_ai.usage.audio.output_tokens"
USAGE_AUDIO_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.audio.cache_read.input_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"  # noqa: S105  (an attribute name)
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"

SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
TOOL_CALL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT: Final = "gen_ai.tool.call.result"

OPENAI_API_TYPE: Final = "openai.api.type"
OPENAI_REQUEST_SERVICE_TIER: Final = "openai.request.service_tier"
OPENAI_RESPONSE_SERVICE_TIER: Final = "openai.response.service_tier"
OPENAI_RESPONSE_SYSTEM_FINGERPRINT: Final = "openai.response.system_fingerprint"

MCP_METHOD_NAME: Final = "mcp.method.name"
MCP_PROTOCOL_VERSION: Final = "mcp.protocol.version"
MCP_SESSION_ID: Final = "mcp.session.id"
JSONRPC_REQUEST_ID: Final = "jsonrpc.request.id"
RPC_RESPONSE_STATUS_CODE: Final = "rpc.response.status_code"
HTTP_RESPONSE_STATUS_CODE: Final = "http.response.status_code"
HTTP_RETRY_AFTER: Final = "http.response.header.retry-after"

# --- attributes of ours -----------------------------------------------------------------------------------------------

RUN_ID: Final = "pellucid.run.id"
ITERATION: Final = "pellucid.iteration"
ITERATIONS: Final = "pellucid.iterations"
PHASE: Final = "pellucid.phase"
OUTCOME: Final = "pellucid.outcome"
STOP_REASON: Final = "pellucid.stop_reason"
ATTEMPT: Final = "pellucid.attempt"
PROVIDER_ID: Final = "pellucid.provider.id"
PROVIDER_KIND: Final = "pellucid.provider.kind"
DISCOVERY_CACHE: Final = "pellucid.discovery.cache"
DISCOVERY_TOOL_COUNT: Final = "pellucid.discovery.tool_count"
DISCOVERY_ATTEMPTS: Final = "pellucid.discovery.attempts"
CATALOG_DIGEST: Final = "pellucid.catalog.digest"
CATALOG_CHANGED: Final = "pellucid.catalog.changed"
COMPOSE_TOOLS: Final = "pellucid.compose.tools"
COMPOSE_MESSAGES: Final = "pellucid.compose.messages"
COMPOSE_DENIED: Final = "pellucid.compose.denied"
COMPOSE_REDEFINED: Final = "pellucid.compose.redefined"
COMPOSE_SHADOWED: Final = "pellucid.compose.shadowed"
COMPOSE_TOOL_TOKENS: Final = "pellucid.compose.tool_tokens"
REQUEST_DIGEST: Final = "pellucid.request.digest"
DISPATCH_MODE: Final = "pellucid.dispatch.mode"
PERMISSION: Final = "pellucid.permission"
APPROVAL_ID: Final = "pellucid.approval.id"
APPROVAL_OUTCOME: Final = "pellucid.approval.outcome"
APPROVAL_WAITED: Final = "pellucid.approval.waited"
APPROVAL_DECIDED_BY: Final = "pellucid.approval.decided_by"
RESUMED_FROM: Final = "pellucid.run.resumed_from"
TOOL_SOURCE: Final = "pellucid.tool.source"
TOOL_SOURCE_PLACE: Final = "pellucid.tool.source_place"
TOOL_QUEUED: Final = "pellucid.tool.queued_ms"
TOOL_EXECUTION: Final = "pellucid.tool.execution"
ASYNC_RESULT_ID: Final = "pellucid.async_tool.result_id"
ASYNC_STATUS: Final = "pellucid.async_tool.status"
SEARCH_QUERY: Final = "pellucid.search.query"
SEARCH_HITS: Final = "pellucid.search.hits"
SEARCH_RANKED: Final = "pellucid.search.ranked"
INPUT: Final = "pellucid.boundary.input"
OUTPUT: Final = "pellucid.boundary.output"
INPUT_DIGEST: Final = "pellucid.boundary.input.digest"
INPUT_BYTES: Final = "pellucid.boundary.input.bytes"
OUTPUT_DIGEST: Final = "pellucid.boundary.output.digest"
OUTPUT_BYTES: Final = "pellucid.boundary.output.bytes"
CONTENT_OMITTED: Final = "pellucid.content.omitted"
CONTENT_REPEATED: Final = "pellucid.content.repeated"
CONTENT_RECORDED_ON: Final = "pellucid.content.recorded_on"
COST_USD: Final = "pellucid.cost.usd"
CACHED_SHARE: Final = "pellucid.usage.cached_share"
OPERATION: Final = "pellucid.operation"
RELIABILITY_THEN: Final = "pellucid.reliability.then"
RELIABILITY_KIND: Final = "pellucid.reliability.kind"
TELEMETRY_PART: Final = "pellucid.telemetry.part"
SAMPLING_REASON: Final = "pellucid.sampling.reason"
SAMPLING_EARLY: Final = "pellucid.sampling.early"

# --- metrics ----------------------------------------------------------------------------------------------------------

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
    "Time a tool provider took to list its tools.",
    (PROVIDER_ID, PROVIDER_KIND, DISCOVERY_CACHE, ERROR_TYPE),
    (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0),
)
DISCOVERY_OBJECTIVE: Final = _gauge(
    "s", "pellucid.tool.discovery.objective", "Latency objective that a tool provider declared.", (PROVIDER_ID,)
)
DISCOVERY_OVER_OBJECTIVE: Final = _counter(
    "{discovery}",
    "pellucid.tool.discovery.over_objective",
    "Discoveries that took longer than the objective which their tool provider declared.",
    DISCOVERY_DURATION.attributes,
)
DISCOVERY_INFLIGHT: Final = _updown(
    "{fetch}", "pellucid.tool.discovery.inflight", "Discovery fetches under way.", (PROVIDER_ID,)
)
DISCOVERY_INFLIGHT_AGE: Final = _gauge(
    "s",
    "pellucid.tool.discovery.inflight.age",
    "Age of the oldest discovery fetch under way; 0 when there is none.",
    (PROVIDER_ID,),
)
DISCOVERY_LAST_SUCCESS: Final = _gauge(
    "s",
    "pellucid.tool.discovery.last_success",
    "Unix time of the last successful round trip to a tool provider.",
    (PROVIDER_ID,),
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
    "{USD}",
    "pellucid.cost",
    "What model calls cost, in US dollars; calls of unknown price add nothing.",
    (PROVIDER_NAME, REQUEST_MODEL),
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
AGENT_DURATION: Final = _duration(
    "gen_ai.invoke_agent.duration",
    "Duration of a run.",
    (AGENT_NAME, REQUEST_MODEL, ERROR_TYPE),
    (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6),
)
_CALLS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
INFERENCE_CALLS: Final = _histogram(
    "{inference_call}",
    "gen_ai.invoke_agent.inference_calls",
    "Model calls of a run, without those of agents that are its tools.",
    (AGENT_NAME, REQUEST_MODEL),
    _CALLS,
)
TOOL_CALLS: Final = _histogram(
    "{tool_call}",
    "gen_ai.invoke_agent.tool_calls",
    "Tool calls of a run, without those of agents that are its tools and those that a vendor makes.",
    (AGENT_NAME, REQUEST_MODEL),
    _CALLS,
)
RUN_ITERATIONS: Final = _histogram(
    "{iteration}",
    "pellucid.run.iterations",
    "Iterations of a run.",
    (AGENT_NAME, STOP_REASON),
    (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0),
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
    "Results of asynchronous tool calls that had already expired or been stopped.",
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
    "Telemetry items dropped because a queue was full, or because their export failed.",
    (TELEMETRY_PART,),
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

# --- metrics of the newest conventions --------------------------------------------------------------------------------

OPT_IN: Final = "gen_ai_latest_experimental"
"""Value in `OTEL_SEMCONV_STABILITY_OPT_IN` that asks for them instead of those of release 1.41."""

TOKEN_MODALITY: Final = "gen_ai.token.modality"  # noqa: S105  (an attribute name)

USAGE_COUNTERS: Final = {
    name: _counter(
        "{token}",
        f"gen_ai.client.inference.usage.{name}",
        f"Tokens of model calls: {name}.",
        (*_CLIENT, ERROR_TYPE, TOKEN_MODALITY),
    )
    for name in (
        "input_tokens",
        "output_tokens",
        "cache_read.input_tokens",
        "cache_write.input_tokens",
        "reasoning.output_tokens",
    )
}
"""Counters by the name of what they count; a call whose usage is unknown adds 0."""

CALL_TOKENS: Final = {
    name: _histogram(
        "{token}",
        f"gen_ai.client.inference.operation.{name}",
        f"Tokens of one model call: {name}.",
        (*_CLIENT, ERROR_TYPE),
        TOKEN_USAGE.buckets,
    )
    for name in ("input_tokens", "output_tokens")
}

RENAMED: Final = {
    OPERATION_DURATION.name: "gen_ai.client.inference.duration",
    TIME_TO_FIRST_CHUNK.name: "gen_ai.client.inference.time_to_first_chunk",
    TIME_PER_OUTPUT_CHUNK.name: "gen_ai.client.inference.time_per_output_chunk",
}
"""What metrics of release 1.41 are called there."""

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All instruments, in the order of this file."""
