"""The seam between a run and a model: a request, a response, and a protocol of two methods."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, cast, runtime_checkable

from pellucid.errors import ConfigError
from pellucid.messages import FinishReason, Message, ToolDefinition, Usage
from pellucid.types import JSONObject


class Settings(TypedDict, total=False):
    """Request parameters, under the names of the conventions' `gen_ai.request.*`; only what is set is sent.

    A vendor that has no such parameter refuses the request: none is dropped in silence.

    Keys:
        reasoning_level: How hard to think, in the vendor's words (`low`, `high`, ...).
        extra: Further members of the vendor's request body, sent as they are and not recorded.
    """

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    frequency_penalty: float
    presence_penalty: float
    stop_sequences: Sequence[str]
    reasoning_level: str
    extra: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSchema:
    """The shape that an answer must have.

    Attributes:
        name: `[A-Za-z0-9_-]{1,64}`.
        schema: A JSON Schema.
    """

    name: str
    schema: JSONObject
    description: str | None = None


def _ignore() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What a model is asked.

    Attributes:
        instructions: System text, apart from the history.
        messages: The history, oldest first.
        tools: What the model may ask for; empty when a closing answer is wanted.
        settings: Request parameters.
        output: What the final answer must look like, if not plain text.
        on_chunk: A model that streams calls it for each chunk from its vendor, as it arrives and also if it has no
            content. Without such calls, each `ModelDelta` counts as a chunk.
    """

    instructions: str | None = None
    messages: Sequence[Message] = ()
    tools: Sequence[ToolDefinition] = ()
    settings: Settings = field(default_factory=Settings)
    output: OutputSchema | None = None
    on_chunk: Callable[[], None] = field(default=_ignore, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse:
    """What a model answered.

    Attributes:
        model: The one that answered, if it says so.
        id: The vendor's.
        attributes: Further attributes of the `chat` span, under the vendor's own names such as `openai.*`.
    """

    message: Message
    usage: Usage = field(default_factory=Usage)
    finish_reason: FinishReason = "stop"
    model: str | None = None
    id: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelDelta:
    """A piece of a streamed answer.

    Attributes:
        content: Of a tool call the tool's name, once it is known.
    """

    type: Literal["text", "reasoning", "tool_call"]
    content: str


StreamItem: TypeAlias = ModelDelta | ModelResponse


@runtime_checkable
class Model(Protocol):
    """Something that answers requests. Adapters translate; they know nothing of telemetry, retries or the loop.

    Attributes:
        name: Value of `gen_ai.request.model`.
        provider_name: Value of `gen_ai.provider.name`, such as `openai` or `anthropic`.

    Optional: `server_address` and `server_port`, for telemetry; `native_output = True` if the model takes
    `ModelRequest.output` to the vendor (otherwise the schema is put into the instructions); `async warm_up()`, which
    makes what the first request needs; `aclose()`.
    """

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    @property
    def provider_name(self) -> str:
        """Its vendor's name."""
        ...

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the whole answer. Raise on failure: a `ModelError` that says its kind, or anything else."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield deltas as they arrive, and last the whole `ModelResponse`, equal to what `generate` would return."""
        ...


def require_model(given: object, where: str) -> Model:
    """Return what was given as a model.

    Raises:
        ConfigError: it is none; the message begins with `where`.
    """
    if isinstance(given, type):
        raise ConfigError(f"{where}: {given.__name__} is a class; make a model of it: {given.__name__}(...)")
    if not isinstance(given, Model):
        raise ConfigError(
            f"{where}: {given!r} is not a model; it needs `name`, `provider_name`, `generate()` and `stream()`"
        )
    return given


def closable(items: AsyncIterator[StreamItem]) -> AsyncGenerator[StreamItem]:
    """Return a stream that can be closed. Almost all can; the protocol asks for no more than an iterator."""
    if hasattr(items, "aclose"):
        return cast("AsyncGenerator[StreamItem]", items)

    async def wrapped() -> AsyncGenerator[StreamItem]:
        async for item in items:
            yield item

    return wrapped()
