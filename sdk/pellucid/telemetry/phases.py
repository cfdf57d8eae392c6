"""The six kinds of boundary: attributes, events and metrics of each phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from pellucid import events, semconv
from pellucid.events import Event


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Phase:
    """One kind of boundary.

    Attributes:
        name: Value of `pellucid.phase`.
        operation: First word of the span's name.
        kind: Kind of the span.
        attributes: Constant attributes of the spans.
        names: Notes that become attributes of the span, each with its attribute; others are for events and log lines.
        logged: Notes in the log line, in addition to those of every line.
        duration: Histogram of the duration, in seconds.
        started: Event at the start; None if there is none.
        completed: Event at a successful end.
        failed: Event at a failure, cancellation or timeout; None if there is none.
        input: Attribute of the recorded input.
        output: Attribute of the recorded output.
        late: Counter of the boundaries that took longer than their `objective`, with the labels of the histogram.
        failures: Counter of failures by the phase in which they arose.
        is_measured: Whether the duration is measured.
        exception: Name of the log record of an exception that ends the boundary; None if there is none.
        is_journalled: Whether the process that continues a durable run ends the span, if this one has lost the run.
    """

    name: str
    operation: str
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Mapping[str, AttributeValue]
    names: Mapping[str, str]
    logged: tuple[str, ...]
    duration: semconv.Metric
    started: type[Event] | None
    completed: type[Event]
    failed: type[Event] | None
    input: str = semconv.INPUT
    output: str = semconv.OUTPUT
    late: semconv.Metric | None = None
    failures: semconv.Metric | None = None
    is_measured: bool = True
    exception: str | None = None
    is_journalled: bool = False


SETTINGS: Final = {
    "max_tokens": semconv.REQUEST_MAX_TOKENS,
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "top_k": semconv.REQUEST_TOP_K,
    "seed": semconv.REQUEST_SEED,
    "frequency_penalty": semconv.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": semconv.REQUEST_PRESENCE_PENALTY,
    "stop_sequences": semconv.REQUEST_STOP_SEQUENCES,
    "reasoning_level": semconv.REQUEST_REASONING_LEVEL,
    "output_type": semconv.OUTPUT_TYPE,
}
"""Attributes of request parameters, by their names in `Settings`."""

RUN: Final = Phase(
    name=semconv.RUN,
    operation=semconv.INVOKE_AGENT,
    attributes={semconv.PHASE: semconv.RUN, semconv.OPERATION_NAME: semconv.INVOKE_AGENT},
    names={
        "agent": semconv.AGENT_NAME,
        "version": semconv.AGENT_VERSION,
        "description": semconv.AGENT_DESCRIPTION,
        "conversation_id": semconv.CONVERSATION_ID,
        "model": semconv.REQUEST_MODEL,
        **SETTINGS,
        "finish_reasons": semconv.RESPONSE_FINISH_REASONS,
        "iterations": semconv.ITERATIONS,
        "stop_reason": semconv.STOP_REASON,
        "resumed_from": semconv.RESUMED_FROM,
        "tags": semconv.RUN_TAGS,
        "durable_run_id": semconv.DURABLE_RUN_ID,
        "input_tokens": semconv.USAGE_INPUT_TOKENS,
        "output_tokens": semconv.USAGE_OUTPUT_TOKENS,
        "cost": semconv.COST_USD,
    },
    logged=("durable_run_id", "stop_reason", "iterations", "input_tokens", "output_tokens"),
    duration=semconv.AGENT_DURATION,
    failures=semconv.RUN_FAILURES,
    started=events.RunStarted,
    completed=events.RunCompleted,
    failed=events.RunFailed,
    is_journalled=True,
    input=semconv.INPUT_MESSAGES,
    output=semconv.OUTPUT_MESSAGES,
)
DISCOVERY: Final = Phase(
    name=semconv.DISCOVERY,
    operation=semconv.DISCOVER_TOOLS,
    attributes={semconv.PHASE: semconv.DISCOVERY},
    names={
        "provider_id": semconv.PROVIDER_ID,
        "provider_kind": semconv.PROVIDER_KIND,
        "cache": semconv.DISCOVERY_CACHE,
        "tool_count": semconv.DISCOVERY_TOOL_COUNT,
        "attempts": semconv.DISCOVERY_ATTEMPTS,
        "listing": semconv.HUB_LISTING_SECONDS,
        "digest": semconv.CATALOG_DIGEST,
        "changed": semconv.CATALOG_CHANGED,
        "server_address": semconv.SERVER_ADDRESS,
        "server_port": semconv.SERVER_PORT,
    },
    logged=("provider_id", "cache", "tool_count"),
    duration=semconv.DISCOVERY_DURATION,
    late=semconv.DISCOVERY_OVER_OBJECTIVE,
    started=events.ToolsDiscoveryStarted,
    completed=events.ToolsDiscoveryCompleted,
    failed=events.ToolsDiscoveryFailed,
)
BACKGROUND_DISCOVERY: Final = replace(
    DISCOVERY,
    attributes={**DISCOVERY.attributes, semconv.DISCOVERY_BACKGROUND: True},
    is_measured=False,
)
"""Discovery that no run waits for; its requests are measured."""
COMPOSE: Final = Phase(
    name=semconv.COMPOSE,
    operation=semconv.COMPOSE_REQUEST,
    attributes={semconv.PHASE: semconv.COMPOSE},
    names={
        "agent": semconv.AGENT_NAME,
        "tool_count": semconv.COMPOSE_TOOLS,
        "tool_tokens": semconv.COMPOSE_TOOL_TOKENS,
        "message_count": semconv.COMPOSE_MESSAGES,
        "shadowed": semconv.COMPOSE_SHADOWED,
        "denied": semconv.COMPOSE_DENIED,
        "redefined": semconv.COMPOSE_REDEFINED,
        "digest": semconv.REQUEST_DIGEST,
        "instructions_digest": semconv.INSTRUCTIONS_DIGEST,
        "catalog_digest": semconv.CATALOG_DIGEST,
    },
    logged=("tool_count", "message_count", "shadowed", "redefined"),
    duration=semconv.COMPOSE_DURATION,
    started=None,
    completed=events.RequestComposed,
    failed=None,
)
INFERENCE: Final = Phase(
    name=semconv.INFERENCE,
    operation=semconv.CHAT,
    kind=SpanKind.CLIENT,
    attributes={semconv.PHASE: semconv.INFERENCE, semconv.OPERATION_NAME: semconv.CHAT},
    names={
        "model_provider": semconv.PROVIDER_NAME,
        "model": semconv.REQUEST_MODEL,
        "stream": semconv.REQUEST_STREAM,
        **SETTINGS,
        "conversation_id": semconv.CONVERSATION_ID,
        "catalog_digest": semconv.CATALOG_DIGEST,
        "attempt": semconv.ATTEMPT,
        "server_address": semconv.SERVER_ADDRESS,
        "server_port": semconv.SERVER_PORT,
        "response_id": semconv.RESPONSE_ID,
        "response_model": semconv.RESPONSE_MODEL,
        "finish_reasons": semconv.RESPONSE_FINISH_REASONS,
        "time_to_first_chunk": semconv.RESPONSE_TIME_TO_FIRST_CHUNK,
        "chunks": semconv.RESPONSE_CHUNKS,
        "input_tokens": semconv.USAGE_INPUT_TOKENS,
        "output_tokens": semconv.USAGE_OUTPUT_TOKENS,
        "cache_read_input_tokens": semconv.USAGE_CACHE_READ_INPUT_TOKENS,
        "cache_write_input_tokens": semconv.USAGE_CACHE_WRITE_INPUT_TOKENS,
        "reasoning_output_tokens": semconv.USAGE_REASONING_OUTPUT_TOKENS,
        "cached_share": semconv.CACHED_SHARE,
        "cost": semconv.COST_USD,
    },
    logged=("model", "finish_reason", "input_tokens", "output_tokens"),
    duration=semconv.OPERATION_DURATION,
    started=events.InferenceStarted,
    completed=events.InferenceCompleted,
    failed=events.InferenceFailed,
    exception=semconv.EXCEPTION_EVENT,
    input=semconv.INPUT_MESSAGES,
    output=semconv.OUTPUT_MESSAGES,
)
DISPATCH: Final = Phase(
    name=semconv.DISPATCH,
    operation=semconv.EXECUTE_TOOL,
    attributes={semconv.PHASE: semconv.DISPATCH, semconv.OPERATION_NAME: semconv.EXECUTE_TOOL},
    names={
        "agent": semconv.AGENT_NAME,
        "provider_id": semconv.PROVIDER_ID,
        "tool_name": semconv.TOOL_NAME,
        "tool_type": semconv.TOOL_TYPE,
        "tool_call_id": semconv.TOOL_CALL_ID,
        "tool_description": semconv.TOOL_DESCRIPTION,
        "dispatch_mode": semconv.DISPATCH_MODE,
        "execution": semconv.TOOL_EXECUTION,
        "source": semconv.TOOL_SOURCE,
        "queued": semconv.TOOL_QUEUED,
        "permission": semconv.PERMISSION,
        "approval_id": semconv.APPROVAL_ID,
        "approval": semconv.APPROVAL_OUTCOME,
        "approval_waited": semconv.APPROVAL_WAITED,
        "approval_decided_by": semconv.APPROVAL_DECIDED_BY,
        "source_place": semconv.TOOL_SOURCE_PLACE,
        "conversation_id": semconv.CONVERSATION_ID,
    },
    logged=("tool_name", "tool_call_id", "provider_id", "source"),
    duration=semconv.TOOL_DURATION,
    started=events.ToolStarted,
    completed=events.ToolCompleted,
    failed=events.ToolFailed,
    is_journalled=True,
    input=semconv.TOOL_CALL_ARGUMENTS,
    output=semconv.TOOL_CALL_RESULT,
)

AWAIT: Final = Phase(
    name=semconv.AWAIT,
    operation=semconv.AWAIT_TOOL,
    attributes={semconv.PHASE: semconv.AWAIT},
    names={
        "agent": semconv.AGENT_NAME,
        "tool_name": semconv.TOOL_NAME,
        "tool_call_id": semconv.TOOL_CALL_ID,
        "execution": semconv.TOOL_EXECUTION,
        "result_id": semconv.ASYNC_RESULT_ID,
        "status": semconv.ASYNC_STATUS,
    },
    logged=("tool_name", "tool_call_id", "result_id", "status"),
    duration=semconv.EXTERNAL_WAIT,
    started=None,
    completed=events.AsyncToolSettled,
    failed=events.AsyncToolSettled,
)

PHASES: Final[Mapping[str, Phase]] = {
    phase.name: phase for phase in (RUN, DISCOVERY, COMPOSE, INFERENCE, DISPATCH, AWAIT)
}
"""All phases by name."""

_ENVELOPE = frozenset(field.name for field in fields(Event))


class _Payloads(dict[type[Event], tuple[str, ...]]):
    def __missing__(self, event: type[Event]) -> tuple[str, ...]:
        self[event] = names = tuple(field.name for field in fields(event) if field.name not in _ENVELOPE)
        return names


PAYLOADS: Final[Mapping[type[Event], tuple[str, ...]]] = _Payloads()
"""Fields of each event, without those of the envelope."""
