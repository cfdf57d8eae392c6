"""A run in which everything that telemetry may say is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from pellucid import (
    Agent,
    BlobPart,
    FilePart,
    Identity,
    Message,
    ModelDelta,
    ModelResponse,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResult,
    UriPart,
    Usage,
    tool,
)
from pellucid.messages import ServerToolCall, ServerToolResult
from pellucid.models import Price, PriceTable, Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid import ModelRequest

WHO = Identity(tenant="acme", conversation_id="thread-17")
USAGE = Usage(
    input_tokens=100,
    output_tokens=10,
    cache_read_input_tokens=50,
    cache_write_input_tokens=25,
    reasoning_output_tokens=4,
)
PRICES = PriceTable({"gpt-x-2026-08-07": Price(input=1.0, output=10.0)})
SETTINGS = Settings(
    max_tokens=1024,
    temperature=0.2,
    top_p=0.9,
    top_k=40,
    seed=7,
    frequency_penalty=0.1,
    presence_penalty=0.2,
    stop_sequences=["END"],
    reasoning_level="high",
    extra={"metadata": {"team": "a"}},
)
HISTORY = [
    Message("system", "Be kind."),
    Message(
        "user",
        [
            TextPart("Look at these."),
            BlobPart(content="AA==", modality="image", mime_type="image/png"),
            FilePart(file_id="file-1", modality="document", mime_type="application/pdf"),
            UriPart(uri="https://example.com/a.mp3", modality="audio"),
        ],
    ),
    Message(
        "assistant",
        [
            ReasoningPart("I should search."),
            ServerToolCall(name="web", server_tool_call={"type": "web_search", "query": "bergen"}, id="srv_1"),
            ServerToolResult(server_tool_call_response={"type": "web_search", "found": 3}, id="srv_1"),
            ToolCall("add", {"a": 1, "b": 1}, "call_0"),
        ],
    ),
    Message("tool", [ToolResult("call_0", 2)]),
    Message("user", "And now?"),
]


class RemoteModel:
    """A model of which everything is known: it calls the tool `add`, then answers."""

    name = "gpt-x"
    provider_name = "openai"
    server_address = "api.example.com"
    server_port = 443
    native_output = True

    def __init__(self) -> None:
        self.asked = 0

    def _response(self) -> ModelResponse:
        self.asked += 1
        message = (
            Message("assistant", [ReasoningPart("Sum them."), ToolCall("add", {"a": 1, "b": 2}, "call_1")])
            if self.asked == 1
            else Message("assistant", '{"sum": 3}')
        )
        return ModelResponse(
            message=message,
            usage=USAGE,
            finish_reason="tool_call" if message.tool_calls else "stop",
            model="gpt-x-2026-08-07",
            id=f"resp_{self.asked}",
        )

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer."""
        return self._response()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Any]:
        """Answer in pieces."""
        response = self._response()
        for word in (response.message.text or "...").split():
            yield ModelDelta("text", word)
        yield response


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Sum(TypedDict):
    """Answer of the agent."""

    sum: int


def agent(**options: Any) -> Agent:
    """Return an agent that has everything an agent may have."""
    model = options.pop("model", None) or RemoteModel()
    given = {"tools": [add], "description": "Helps.", "settings": SETTINGS, "output": Sum, "prices": PRICES, **options}
    return Agent("support", model=model, instructions="Be brief.", **given)
