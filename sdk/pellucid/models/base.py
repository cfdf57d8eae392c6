"""The seam between a run and a model: a request, a response, and a protocol of two methods."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from pellucid.messages import FinishReason, Message, ToolDefinition, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What a model is asked.

    Attributes:
        instructions: System text, apart from the history.
        messages: The history, oldest first.
        tools: What the model may ask for; empty when a closing answer is wanted.
        settings: Request parameters under the names of the conventions' `gen_ai.request.*` (`temperature`,
            `max_tokens`, `top_p`, `seed`, `stop_sequences`, ...).
    """

    instructions: str | None = None
    messages: Sequence[Message] = ()
    tools: Sequence[ToolDefinition] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResponse:
    """What a model answered. Attributes: model: the one that answered, if it says so; id: the vendor's."""

    message: Message
    usage: Usage = field(default_factory=Usage)
    finish_reason: FinishReason = "stop"
    model: str | None = None
    id: str | None = None


@dataclass(frozen=True, slots=True)
class ModelDelta:
    """A piece of a streamed answer."""

    type: Literal["text", "reasoning", "tool_call"]
    content: str


StreamItem: TypeAlias = ModelDelta | ModelResponse


@runtime_checkable
class Model(Protocol):
    """Something that answers requests. Adapters translate; they know nothing of telemetry, retries or the loop.

    Attributes:
        name: Value of `gen_ai.request.model`.
        provider_name: Value of `gen_ai.provider.name`, such as `openai` or `anthropic`.

    `server_address` and `server_port` may be given as further attributes.
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
        """Return the whole answer. Raise on failure; the runtime names the model and keeps the cause."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield deltas as they arrive, and last the whole `ModelResponse`, equal to what `generate` would return."""
        ...
