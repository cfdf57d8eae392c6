"""Facts of the OpenTelemetry conventions, written down apart from the code that is held against them.

From the GenAI conventions, release 1.41 and what has been agreed on since: spans, metrics, and the JSON of messages;
from those of HTTP, the metric of servers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import SpanKind

if TYPE_CHECKING:
    from collections.abc import Mapping

STRINGS: Final = "string[]"
TYPES: Final[Mapping[str, type]] = {"string": str, "int": int, "double": float, "boolean": bool, STRINGS: tuple}

ATTRIBUTES: Final[Mapping[str, str]] = {
    "error.type": "string",
    "server.address": "string",
    "server.port": "int",
    "gen_ai.operation.name": "string",
    "gen_ai.provider.name": "string",
    "gen_ai.agent.name": "string",
    "gen_ai.agent.description": "string",
    "gen_ai.conversation.id": "string",
    "gen_ai.request.model": "string",
    "gen_ai.request.stream": "boolean",
    "gen_ai.request.max_tokens": "int",
    "gen_ai.request.temperature": "double",
    "gen_ai.request.top_p": "double",
    "gen_ai.request.top_k": "int",
    "gen_ai.request.seed": "int",
    "gen_ai.request.frequency_penalty": "double",
    "gen_ai.request.presence_penalty": "double",
    "gen_ai.request.stop_sequences": STRINGS,
    "gen_ai.request.reasoning.level": "string",
    "gen_ai.output.type": "string",
    "gen_ai.response.id": "string",
    "gen_ai.response.model": "string",
    "gen_ai.response.finish_reasons": STRINGS,
    "gen_ai.response.time_to_first_chunk": "double",
    "gen_ai.usage.input_tokens": "int",
    "gen_ai.usage.output_tokens": "int",
    "gen_ai.usage.cache_read.input_tokens": "int",
    "gen_ai.usage.cache_write.input_tokens": "int",
    "gen_ai.usage.reasoning.output_tokens": "int",
    "gen_ai.tool.name": "string",
    "gen_ai.tool.type": "string",
    "gen_ai.tool.call.id": "string",
    "gen_ai.tool.description": "string",
    "gen_ai.evaluation.name": "string",
    "gen_ai.evaluation.score.value": "double",
    "gen_ai.evaluation.score.label": "string",
    "gen_ai.evaluation.explanation": "string",
    # Structured by the conventions; as JSON texts on spans, which they allow.
    "gen_ai.system_instructions": "string",
    "gen_ai.input.messages": "string",
    "gen_ai.output.messages": "string",
    "gen_ai.tool.definitions": "string",
    "gen_ai.tool.call.arguments": "string",
    "gen_ai.tool.call.result": "string",
}
"""Types of the conventions' attributes."""


@dataclass(frozen=True, kw_only=True)
class SpanFacts:
    """Facts of the conventions about one type of span.

    Attributes:
        required: Always there.
        known: There in our example, where everything that they ask for conditionally or recommend is known.
        allowed: Further ones that may be there.
        for_samplers: To be given when the span starts.
    """

    name: str
    kind: SpanKind
    required: frozenset[str]
    known: frozenset[str]
    allowed: frozenset[str] = frozenset()
    for_samplers: frozenset[str] = field(default_factory=frozenset)


def _gen_ai(*names: str) -> frozenset[str]:
    return frozenset(f"gen_ai.{name}" for name in names)


_ADDRESS = frozenset({"server.address", "server.port"})

_SETTINGS = (
    "request.max_tokens",
    "request.temperature",
    "request.top_p",
    "request.top_k",
    "request.seed",
    "request.frequency_penalty",
    "request.presence_penalty",
    "request.stop_sequences",
    "request.reasoning.level",
    "output.type",
)

SPANS: Final[Mapping[str, SpanFacts]] = {
    "invoke_agent": SpanFacts(
        name="invoke_agent {gen_ai.agent.name}",
        kind=SpanKind.INTERNAL,
        required=_gen_ai("operation.name"),
        known=_gen_ai(
            "agent.name",
            "agent.description",
            "conversation.id",
            "request.model",
            *_SETTINGS,
            "response.finish_reasons",
            "usage.input_tokens",
            "usage.output_tokens",
            "input.messages",
            "output.messages",
        ),
        for_samplers=_gen_ai("operation.name", "request.model", "agent.name"),
    ),
    "chat": SpanFacts(
        name="chat {gen_ai.request.model}",
        kind=SpanKind.CLIENT,
        required=_gen_ai("operation.name", "provider.name"),
        known=_ADDRESS
        | _gen_ai(
            "request.model",
            *_SETTINGS,
            "conversation.id",
            "response.id",
            "response.model",
            "response.finish_reasons",
            "usage.input_tokens",
            "usage.output_tokens",
            "usage.cache_read.input_tokens",
            "usage.cache_write.input_tokens",
            "usage.reasoning.output_tokens",
            "input.messages",
            "output.messages",
        ),
        # When streaming; and content that is recorded once in a run.
        allowed=_gen_ai("request.stream", "response.time_to_first_chunk", "system_instructions", "tool.definitions"),
        for_samplers=_ADDRESS | _gen_ai("operation.name", "provider.name", "request.model"),
    ),
    "execute_tool": SpanFacts(
        name="execute_tool {gen_ai.tool.name}",
        kind=SpanKind.INTERNAL,
        required=_gen_ai("operation.name", "tool.name"),
        known=_gen_ai(
            "agent.name",
            "conversation.id",
            "tool.type",
            "tool.call.id",
            "tool.description",
            "tool.call.arguments",
            "tool.call.result",
        ),
        for_samplers=_gen_ai("operation.name", "tool.name", "tool.type", "agent.name"),
    ),
}
"""Spans that the conventions know, by `gen_ai.operation.name`."""


@dataclass(frozen=True, kw_only=True)
class EventFacts:
    """Facts of the conventions about one event. Attributes: required: Always there. allowed: Further ones of theirs."""

    required: frozenset[str]
    allowed: frozenset[str]


EVENTS: Final[Mapping[str, EventFacts]] = {
    "gen_ai.evaluation.result": EventFacts(
        required=_gen_ai("evaluation.name"),
        allowed=_gen_ai("evaluation.score.value", "evaluation.score.label", "evaluation.explanation", "response.id")
        | {"error.type"},
    ),
}


@dataclass(frozen=True, kw_only=True)
class MetricFacts:
    """Facts of the conventions about one histogram."""

    unit: str
    bounds: tuple[float, ...]
    required: frozenset[str]
    allowed: frozenset[str]


_CLIENT_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_RUN_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
_TOKENS = (
    1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864,
)  # fmt: skip
_CLIENT = _gen_ai("operation.name", "provider.name")
_OF_CLIENT = _ADDRESS | _gen_ai("request.model", "response.model")
_ERROR = frozenset({"error.type"})

_CALLS = (1, 2, 4, 8, 16, 32, 64, 128)
_MCP_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
_MCP = frozenset(
    {"mcp.protocol.version", "network.transport", "network.protocol.name", "network.protocol.version"}
    | _ADDRESS
    | _ERROR
)

METRICS: Final[Mapping[str, MetricFacts]] = {
    "http.server.request.duration": MetricFacts(
        unit="s",
        bounds=(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
        required=frozenset({"http.request.method", "url.scheme"}),
        allowed=frozenset({"http.route", "http.response.status_code"} | _ERROR),
    ),
    "mcp.client.operation.duration": MetricFacts(
        unit="s",
        bounds=_MCP_SECONDS,
        required=frozenset({"mcp.method.name"}),
        allowed=_gen_ai("tool.name", "operation.name") | _MCP | {"rpc.response.status_code"},
    ),
    "mcp.client.session.duration": MetricFacts(unit="s", bounds=_MCP_SECONDS, required=frozenset(), allowed=_MCP),
    "gen_ai.client.operation.duration": MetricFacts(
        unit="s", bounds=_CLIENT_SECONDS, required=_CLIENT, allowed=_OF_CLIENT | _ERROR
    ),
    "gen_ai.client.operation.time_to_first_chunk": MetricFacts(
        unit="s", bounds=_CLIENT_SECONDS, required=_CLIENT, allowed=_OF_CLIENT
    ),
    "gen_ai.client.operation.time_per_output_chunk": MetricFacts(
        unit="s", bounds=_CLIENT_SECONDS, required=_CLIENT, allowed=_OF_CLIENT
    ),
    "gen_ai.client.token.usage": MetricFacts(
        unit="{token}", bounds=_TOKENS, required=_CLIENT | {"gen_ai.token.type"}, allowed=_OF_CLIENT
    ),
    "gen_ai.invoke_agent.inference_calls": MetricFacts(
        unit="{inference_call}", bounds=_CALLS, required=frozenset(), allowed=_gen_ai("agent.name", "request.model")
    ),
    "gen_ai.invoke_agent.tool_calls": MetricFacts(
        unit="{tool_call}", bounds=_CALLS, required=frozenset(), allowed=_gen_ai("agent.name", "request.model")
    ),
    "gen_ai.execute_tool.duration": MetricFacts(
        unit="s",
        bounds=_CLIENT_SECONDS,
        required=_gen_ai("tool.name"),
        # The provider's id is ours: the conventions have no name for a tool hub.
        allowed=_gen_ai("tool.type", "agent.name") | _ERROR | {"pellucid.provider.id", "pellucid.tool.source"},
    ),
    "gen_ai.invoke_agent.duration": MetricFacts(
        unit="s", bounds=_RUN_SECONDS, required=frozenset(), allowed=_gen_ai("agent.name", "request.model") | _ERROR
    ),
}


def _part(kind: str, required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of one kind of part. Nothing else may be in it: what is not in the conventions is not sent."""
    properties = {"type": {"const": kind}, **required, **(optional or {})}
    return {
        "type": "object",
        "properties": properties,
        "required": ["type", *required],
        "additionalProperties": False,
    }


_TEXT = {"type": "string"}
_MAYBE = {"type": ["string", "null"]}
_TYPED = {"type": "object", "properties": {"type": _TEXT}, "required": ["type"]}
_MODALITY = {"enum": ["image", "video", "audio", "document"]}
_MIME = {"mime_type": _TEXT}
_PARTS = [
    _part("text", {"content": _TEXT}),
    _part("reasoning", {"content": _TEXT}),
    _part("tool_call", {"name": _TEXT}, {"id": _MAYBE, "arguments": True}),
    _part("tool_call_response", {"response": True}, {"id": _TEXT}),
    _part("server_tool_call", {"name": _TEXT, "server_tool_call": _TYPED}, {"id": _TEXT}),
    _part("server_tool_call_response", {"server_tool_call_response": _TYPED}, {"id": _TEXT}),
    _part("blob", {"modality": _MODALITY, "content": _TEXT}, _MIME),
    _part("file", {"modality": _MODALITY, "file_id": _TEXT}, _MIME),
    _part("uri", {"modality": _MODALITY, "uri": _TEXT}, _MIME),
]
_FINISH_REASONS = ("stop", "length", "content_filter", "tool_call", "error")


def _messages(required: tuple[str, ...]) -> dict[str, Any]:
    message = {
        "type": "object",
        "properties": {
            "role": {"enum": ["system", "user", "assistant", "tool"]},
            "parts": {"type": "array", "items": {"oneOf": _PARTS}},
            "finish_reason": {"enum": list(_FINISH_REASONS)},
        },
        "required": ["role", "parts", *required],
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "array", "items": message}


SCHEMAS: Final[Mapping[str, dict[str, Any]]] = {
    "gen_ai.input.messages": _messages(()),
    "gen_ai.output.messages": _messages(("finish_reason",)),
    "gen_ai.system_instructions": {"type": "array", "items": _PARTS[0], "minItems": 1},
    "gen_ai.tool.definitions": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "type": {"const": "function"},
                "name": _TEXT,
                "description": _TEXT,
                "parameters": {"type": "object"},
                "output_schema": {"type": "object"},
            },
            "required": ["type", "name"],
            "additionalProperties": False,
        },
    },
}
"""JSON Schemas of what is recorded, stricter than the conventions' own: those let any part of any type pass."""
