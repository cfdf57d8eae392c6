"""Messages in the shape of the OpenTelemetry GenAI conventions, so that recording needs no conversion.

A message is `{"role", "parts": [...]}`; see "Recording content" in the GenAI conventions, release 1.41.
`dump_messages` and `load_messages` convert conversations to plain JSON and back, including vendor data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeAlias, get_args

from pydantic_core import ValidationError

from pellucid.errors import ConfigError
from pellucid.types import JSONObject, JSONValue

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = [
    "BlobPart",
    "FilePart",
    "FinishReason",
    "Message",
    "Modality",
    "Part",
    "Parts",
    "ProviderToolDefinition",
    "ReasoningPart",
    "Role",
    "ServerToolCall",
    "ServerToolResult",
    "TextPart",
    "ToolCall",
    "ToolDefinition",
    "ToolResult",
    "UriPart",
    "Usage",
    "Vendor",
    "dump_messages",
    "load_messages",
]

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
FinishReason: TypeAlias = Literal["stop", "length", "content_filter", "tool_call", "error"]
Modality: TypeAlias = Literal["image", "video", "audio", "document"]
Vendor: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Opaque data that a vendor requires back with a part, by provider name: signatures, encrypted reasoning. Other vendors
never get it, and it is not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecordPart:
    """A part whose fields are its JSON shape."""

    type: ClassVar[str]
    vendor: Vendor | None = field(default=None, repr=False)

    def to_dict(self) -> JSONObject:
        """Return the conventions' JSON shape."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "vendor"}
        return {"type": self.type, **{key: value for key, value in values.items() if value is not None}}


@dataclass(frozen=True, slots=True)
class TextPart(_RecordPart):
    """Text sent to or received from a model."""

    type: ClassVar[str] = "text"
    content: str


@dataclass(frozen=True, slots=True)
class ReasoningPart(_RecordPart):
    """Reasoning of a model before its answer."""

    type: ClassVar[str] = "reasoning"
    content: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's request to run a tool.

    Attributes:
        name: Tool name, as the model wrote it.
        arguments: The parsed JSON object, or the raw text if it is not a JSON object.
        id: Id of the call, unique within a conversation; the run assigns one if it is missing.
    """

    type: ClassVar[str] = "tool_call"
    name: str
    arguments: JSONObject | str = ""
    id: str | None = None
    vendor: Vendor | None = field(default=None, repr=False, kw_only=True)

    def to_dict(self) -> JSONObject:
        """Return the conventions' JSON shape."""
        return {"type": self.type, "id": self.id, "name": self.name, "arguments": self.arguments or {}}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of a tool call.

    Attributes:
        id: Id of the call.
        response: Text, JSON-able data, or a tuple of parts for content that is not text.
        is_error: Whether the tool failed; `response` then describes the failure and the remedy.
        name: Name of the tool (not part of the conventions' shape; some vendors require it).
        structured: Structured content of an MCP server, where `response` has other content. It is for the application:
            models and telemetry do not get it.
        whole: The whole text of a result of which `response` has only the beginning, if the model can read on with
            `read_result`. Telemetry does not get it.
    """

    type: ClassVar[str] = "tool_call_response"
    id: str
    response: JSONValue
    is_error: bool = False
    name: str = ""
    structured: JSONValue = None
    whole: str | None = field(default=None, repr=False)

    def to_dict(self) -> JSONObject:
        """Return the conventions' JSON shape."""
        response = self.response
        if isinstance(response, tuple):
            response = [part.to_dict() for part in response]
        return {"type": self.type, "id": self.id, "response": response}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerToolCall(_RecordPart):
    """A tool call that the model provider runs itself. It is recorded, never dispatched."""

    type: ClassVar[str] = "server_tool_call"
    name: str
    server_tool_call: Mapping[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerToolResult(_RecordPart):
    """The result of a tool call that the model provider ran itself."""

    type: ClassVar[str] = "server_tool_call_response"
    server_tool_call_response: Mapping[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobPart(_RecordPart):
    """Binary content, as base64 text."""

    type: ClassVar[str] = "blob"
    content: str
    modality: Modality
    mime_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart(_RecordPart):
    """A file that was uploaded to the model provider."""

    type: ClassVar[str] = "file"
    file_id: str
    modality: Modality
    mime_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UriPart(_RecordPart):
    """Content that the model provider fetches from a URI."""

    type: ClassVar[str] = "uri"
    uri: str
    modality: Modality
    mime_type: str | None = None


def modality_of(mime_type: str | None) -> Modality:
    """Return the modality of content of a MIME type; `document` if it is none of the others."""
    kind = (mime_type or "").partition("/")[0]
    return next((modality for modality in get_args(Modality) if modality == kind), "document")


Part: TypeAlias = (
    TextPart | ReasoningPart | ToolCall | ToolResult | ServerToolCall | ServerToolResult | BlobPart | FilePart | UriPart
)


class Parts(tuple[Part, ...]):  # noqa: SLOT001  (tuples cannot have slots)
    """Content parts that a tool returns, with the value of `ToolResult.structured`."""

    structured: JSONValue

    def __new__(cls, parts: Iterable[Part], structured: JSONValue) -> Self:
        """Create a tuple of the parts, with the structured content as an attribute."""
        self = super().__new__(cls, parts)
        self.structured = structured
        return self


class Beginning(str):  # noqa: SLOT000
    """Beginning of a long text that a tool returned, with the value of `ToolResult.whole`."""

    whole: str | None = None


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """One message of a conversation.

    Attributes:
        role: Role of the author.
        parts: Content; a plain string becomes one `TextPart`.
        finish_reason: Reason why the model stopped (output messages only).
    """

    role: Role
    parts: tuple[Part, ...]
    finish_reason: FinishReason | None

    def __init__(self, role: Role, parts: Sequence[Part] | str, finish_reason: FinishReason | None = None) -> None:
        object.__setattr__(self, "role", role)
        object.__setattr__(self, "parts", (TextPart(parts),) if isinstance(parts, str) else tuple(parts))
        object.__setattr__(self, "finish_reason", finish_reason)

    @property
    def text(self) -> str:
        """All text parts, joined."""
        return "".join(part.content for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls to dispatch, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results of tool calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolResult))

    def to_dict(self) -> JSONObject:
        """Return the conventions' JSON shape."""
        shape: JSONObject = {"role": self.role}
        if self.finish_reason is not None:
            shape["finish_reason"] = self.finish_reason  # before the parts, which may be truncated
        return {**shape, "parts": [part.to_dict() for part in self.parts]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens and cost of one model call, or the sum of several. `None` means unknown, which is not 0.

    Cached tokens are part of `input_tokens`, reasoning tokens part of `output_tokens`.

    Attributes:
        cost: Cost in US dollars; for several calls, the sum of the known costs.
        by_modality: Tokens by modality, where the vendor reports them and they are not 0, under the names of the
            conventions without `gen_ai.usage.`: `audio.input_tokens`, `image.output_tokens`,
            `text.cache_read.input_tokens`.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    reasoning_output_tokens: int | None = None
    cost: float | None = None
    by_modality: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __add__(self, other: Usage) -> Usage:
        if other == _UNKNOWN:
            return self
        counts = zip(_COUNTS, _counts_of(self), _counts_of(other), strict=True)
        sums = {name: b if a is None else a if b is None else a + b for name, a, b in counts}
        by_modality = self.by_modality or other.by_modality
        if self.by_modality and other.by_modality:
            by_modality = dict(Counter(self.by_modality) + Counter(other.by_modality))
        return Usage(**sums, by_modality=by_modality)


_COUNTS: Final = tuple(field.name for field in fields(Usage) if field.name != "by_modality")
_counts_of: Final = attrgetter(*_COUNTS)
_UNKNOWN: Final = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition:
    """Definition of a tool for a model.

    Attributes:
        parameters: A JSON Schema of type `object`.
        output_schema: A JSON Schema of the results, if it is known.
    """

    name: str
    description: str
    parameters: JSONObject
    output_schema: JSONObject | None = None

    def to_dict(self) -> JSONObject:
        """Return the conventions' JSON shape, with the output schema if there is one."""
        shape = {"type": "function", "name": self.name, "description": self.description, "parameters": self.parameters}
        return shape if self.output_schema is None else {**shape, "output_schema": self.output_schema}


PROVIDER_TOOLS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "openai": frozenset({"web_search", "file_search", "code_interpreter"}),
        "anthropic": frozenset({"web_search", "web_fetch", "code_execution"}),
        "gemini": frozenset({"google_search", "url_context", "code_execution"}),
    }
)
"""Types of tools that each vendor runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderToolDefinition(ToolDefinition):
    """Definition of a tool that the model's vendor runs.

    Attributes:
        vendor: Vendor whose models run it: `openai`, `anthropic` or `gemini`.
        type: Name of the tool in the vendor's API.
        options: Further members of the vendor's tool definition.
    """

    vendor: str
    type: str
    options: Mapping[str, Any]

    def to_dict(self) -> JSONObject:
        """Return the vendor, name and options, with the type in place of `function`."""
        described = {"description": self.description} if self.description else {}
        return {"type": self.type, "name": self.name, **described, "vendor": self.vendor, "options": {**self.options}}


_KINDS: Final[Mapping[str, type[Any]]] = {kind.type: kind for kind in get_args(Part)}
_ROLES: Final = get_args(Role)


def dump_messages(messages: Sequence[Message]) -> list[JSONValue]:
    """Return messages as JSON-able data, such as a `history` to store in a database.

    Unlike the content recorded in telemetry, the data is complete and not redacted. `load_messages` is the inverse.
    """
    return [_dump_message(message) for message in messages]


def load_messages(data: object) -> tuple[Message, ...]:
    """Return messages from the data that `dump_messages` returned.

    Raises:
        ConfigError: the data has another shape; the text names the place.
    """
    return tuple(_load_message(item, f"messages[{n}]") for n, item in enumerate(_list(data, "messages")))


def dump_part(part: Part) -> JSONObject:
    """Return a part of a message as JSON-able data."""
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    shape = {name: value for name, value in values.items() if value is not None or name == "response"}
    if isinstance(part, ToolResult) and isinstance(part.response, tuple):
        shape["response"] = None
        shape["content"] = [dump_part(item) for item in part.response]
    return {"type": part.type, **shape}


def load_part(data: object, where: str) -> Part:
    """Return a part from the data that `dump_part` returned.

    Raises:
        ConfigError: the data has another shape.
    """
    values = dict(_object(data, where))
    kind = _KINDS.get(str(values.pop("type", None)))
    if kind is None:
        raise ConfigError(f"{where}: the type is not one of {', '.join(_KINDS)}")
    if kind is ToolResult and (content := values.pop("content", None)) is not None:
        parts = enumerate(_list(content, f"{where}.content"))
        values["response"] = tuple(load_part(item, f"{where}.content[{n}]") for n, item in parts)
    try:
        part: Part = _adapter(kind.type).validate_python(values)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        raise ConfigError(f"{where}.{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None
    return part


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(_KINDS[kind])


def _dump_message(message: Message) -> JSONObject:
    shape: JSONObject = {"role": message.role, "parts": [dump_part(part) for part in message.parts]}
    if message.finish_reason is not None:
        shape["finish_reason"] = message.finish_reason
    return shape


def _load_message(data: object, where: str) -> Message:
    shape = _object(data, where)
    role: Any = shape.get("role")
    if role not in _ROLES:
        raise ConfigError(f"{where}: the role is not one of {', '.join(_ROLES)}")
    parts = enumerate(_list(shape.get("parts"), f"{where}.parts"))
    loaded = [load_part(part, f"{where}.parts[{n}]") for n, part in parts]
    return Message(role, loaded, finish_reason=shape.get("finish_reason"))


def _object(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: not a JSON object")
    return data


def _list(data: object, where: str) -> Sequence[object]:
    if not isinstance(data, list):
        raise ConfigError(f"{where}: not a list")
    return data
