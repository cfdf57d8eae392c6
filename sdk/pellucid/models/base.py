"""The interface between a run and a model: a request, a response, and a protocol of two methods."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, cast, runtime_checkable

from pellucid.errors import ConfigError
from pellucid.messages import FinishReason, Message, ToolDefinition, Usage
from pellucid.types import JSONObject


class Settings(TypedDict, total=False):
    """Request parameters, under the names of the conventions' `gen_ai.request.*`. Unset parameters are not sent.

    A request with a parameter that the vendor does not have is refused; no parameter is dropped silently.

    Keys:
        reasoning_level: Reasoning effort, under the vendor's name (`low`, `high`, ...).
        extra: Further members of the vendor's request body, sent unchanged and not recorded.
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
    """The schema that the final answer must match.

    Attributes:
        name: Its name, which matches `[A-Za-z0-9_-]{1,64}`.
        schema: A JSON Schema.
        description: A description for the model.
    """

    name: str
    schema: JSONObject
    description: str | None = None


def _ignore() -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request to a model.

    Attributes:
        instructions: System text, separate from the history.
        messages: The history, oldest first.
        tools: Tools that the model may call; empty for a final answer without tool calls.
        settings: Request parameters.
        output: The schema of the final answer; None for plain text.
        on_chunk: Called by streaming models for each chunk that arrives from the vendor, also for chunks without
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
    """The response of a model.

    Attributes:
        message: The answer.
        usage: The tokens that the call used.
        finish_reason: The reason why the model stopped.
        model: The name of the model that answered, if the vendor states it.
        id: The vendor's id of the response.
        attributes: Further attributes of the `chat` span, under the vendor's names such as `openai.*`.
    """

    message: Message
    usage: Usage = field(default_factory=Usage)
    finish_reason: FinishReason = "stop"
    model: str | None = None
    id: str | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelDelta:
    """A piece of a streamed response.

    Attributes:
        type: The kind of content.
        content: The new text; for a tool call the tool's name, once it is known.
    """

    type: Literal["text", "reasoning", "tool_call"]
    content: str


StreamItem: TypeAlias = ModelDelta | ModelResponse
"""A piece of a streamed answer, or last the complete one."""


@runtime_checkable
class Model(Protocol):
    """A model that answers requests. Adapters only translate: telemetry, retries and the loop are the run's.

    Attributes:
        name: Value of `gen_ai.request.model`.
        provider_name: Value of `gen_ai.provider.name`, such as `openai` or `anthropic`.

    Optional: `server_address` and `server_port`, for telemetry; `native_output = True` if the model sends
    `ModelRequest.output` to the vendor (otherwise the schema is put into the instructions); `async warm_up()`, which
    prepares the first request; `provider_tools`, a set of `(vendor, type)` of the provider tools that its vendor runs;
    `aclose()`.
    """

    @property
    def name(self) -> str:
        """The model's name."""
        ...

    @property
    def provider_name(self) -> str:
        """The vendor's name."""
        ...

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the complete response.

        Raises:
            ModelError: the call failed, with the kind of the failure. Any other exception is a failure, too.
        """
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield deltas as they arrive, then the complete `ModelResponse` that `generate` would return."""
        ...


def require_model(value: object, where: str) -> Model:
    """Return `value` if it is a model.

    Raises:
        ConfigError: it is not a model; the message starts with `where`.
    """
    if isinstance(value, type):
        raise ConfigError(f"{where}: {value.__name__} is a class; create a model: {value.__name__}(...)")
    # From Python 3.12 on, `isinstance` does not see attributes that `__getattr__` of a wrapper returns.
    if not all(hasattr(value, member) for member in ("name", "provider_name", "generate", "stream")):
        raise ConfigError(
            f"{where}: {value!r} is not a model; it needs `name`, `provider_name`, `generate()` and `stream()`"
        )
    return cast("Model", value)


def closable(items: AsyncIterator[StreamItem]) -> AsyncGenerator[StreamItem]:
    """Return a stream with `aclose()`; the protocol requires only an iterator."""
    if hasattr(items, "aclose"):
        return cast("AsyncGenerator[StreamItem]", items)

    async def wrapped() -> AsyncGenerator[StreamItem]:
        async for item in items:
            yield item

    return wrapped()
