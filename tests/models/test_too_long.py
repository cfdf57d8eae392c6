"""Requests that do not fit into a model's window: each vendor says so in its own words."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, Context, Message, ModelError
from pellucid.models import AnthropicModel, GeminiModel, OpenAIModel
from support import anthropic_wire, gemini_wire, openai_wire
from support.models import HELLO, read
from support.runs import within
from support.vendor_server import answer_json

if TYPE_CHECKING:
    from support.vendor_server import Answer, VendorServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


def openai(code: str | None, message: str, status: int = 400) -> Answer:
    """Return an error in the form of OpenAI, which many servers use."""
    return answer_json({"error": {"message": message, "type": "invalid_request_error", "code": code}}, status=status)


def model_of(vendor: str, server: VendorServer) -> Any:
    """Return a model of a vendor at the server."""
    if vendor == "anthropic":
        return AnthropicModel("claude", api_key="key-of-a-test", base_url=server.url)
    if vendor == "gemini":
        return GeminiModel("gemini-3.5-flash", api_key="key-of-a-test", base_url=server.url)
    return OpenAIModel("gpt-x", api=vendor, api_key="key-of-a-test", base_url=f"{server.url}/v1")  # type: ignore[arg-type]


GEMINI = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
OPENAI = "Your input exceeds the context window of this model. Please adjust your input and try again."
REFUSED = [
    ("responses", openai("context_length_exceeded", OPENAI)),
    ("chat", openai("context_length_exceeded", "Please reduce the length of the messages.")),
    ("chat", openai(None, "This model's maximum context length is 16384 tokens. However, you requested 20000.")),
    ("chat", openai(None, "the request exceeds the available context size, try increasing it")),
    ("chat", openai(None, "This model's maximum prompt length is 131072 but the request contains 140000 tokens.")),
    (
        "anthropic",
        anthropic_wire.fault("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", status=400),
    ),
    (
        "anthropic",
        anthropic_wire.fault(
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
            status=400,
        ),
    ),
    ("gemini", answer_json(gemini_wire.fault(400, "INVALID_ARGUMENT", GEMINI), status=400)),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("vendor", "refusal"), REFUSED)
async def test_a_request_that_is_too_long_is_known(
    server: VendorServer, vendor: str, refusal: Answer, stream: bool
) -> None:
    """Its `error_type` is the same for all vendors, and its kind that of a request that is refused."""
    server.always(refusal)
    async with aclosing(model_of(vendor, server)) as model:
        with pytest.raises(ModelError) as caught:
            await (read(model, HELLO) if stream else within(model.generate(HELLO)))
    assert (caught.value.error_type, caught.value.error_kind) == ("context_length_exceeded", "invalid_request")


@pytest.mark.parametrize(
    ("vendor", "refusal"),
    [
        ("chat", openai(None, "Invalid value: 'max_tokens' must be positive.")),
        ("chat", openai("rate_limit_exceeded", "Request too large: tokens per minute (TPM): Limit 30000.", 429)),
        ("anthropic", anthropic_wire.fault("invalid_request_error", "messages: text is too long to name", status=400)),
        ("gemini", answer_json(gemini_wire.fault(400, "INVALID_ARGUMENT", "Unknown name."), status=400)),
    ],
)
async def test_other_refusals_are_not(server: VendorServer, vendor: str, refusal: Answer) -> None:
    """Another value, or more tokens than a minute allows: a shorter request would not help."""
    server.always(refusal)
    async with aclosing(model_of(vendor, server)) as model:
        with pytest.raises(ModelError) as caught:
            await within(model.generate(HELLO))
    assert caught.value.error_type != "context_length_exceeded"


async def test_a_run_goes_on_with_a_shorter_request(server: VendorServer) -> None:
    """The vendor refuses the first request, and gets a shorter one."""
    server.answers(openai("context_length_exceeded", OPENAI), answer_json(openai_wire.completion({"content": "Rain."})))
    history = [Message(role, "word " * 500) for role in ("user", "assistant") * 10]
    async with aclosing(model_of("chat", server)) as model:
        agent = Agent("a", model=model, context=Context(window=100_000))
        result = await within(agent.run("go", history=history))
    assert result.output == "Rain."
    first, second = (len(asked.json["messages"]) for asked in server.requests)
    assert (first, second < first) == (21, True)
