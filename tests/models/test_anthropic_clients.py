"""Clients of one's own, and other places where Anthropic's models are."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from pellucid import Agent, ConfigError, ModelError, semconv
from pellucid.models import AnthropicModel
from support.anthropic_wire import KEY, fault, message, text, whole_or_streamed
from support.models import HELLO, asking, both
from support.runs import attributes, within

if TYPE_CHECKING:
    from pellucid.models.anthropic.model import Client
    from pellucid_exporters.testing import Captured
    from support.vendor_server import VendorServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

MARK = {"type": "ephemeral"}


@pytest.fixture
def server(server: VendorServer) -> VendorServer:
    """Run a server that always answers."""
    server.always(lambda asked: whole_or_streamed(message(text("Hi")), stream=bool(asked.json.get("stream"))))
    return server


def bedrock(server: VendorServer) -> Client:
    """Return a client for Bedrock."""
    return anthropic.AsyncAnthropicBedrock(
        api_key=KEY, aws_region="eu-north-1", base_url=server.url, max_retries=0, open_telemetry=False
    )


def mantle(server: VendorServer) -> Client:
    """Return a client for Bedrock's newer endpoint."""
    return anthropic.AsyncAnthropicBedrockMantle(
        api_key=KEY, aws_region="eu-north-1", base_url=server.url, max_retries=0, open_telemetry=False
    )


def vertex(server: VendorServer) -> Client:
    """Return a client for Vertex AI."""
    return anthropic.AsyncAnthropicVertex(
        access_token=KEY, region="global", project_id="p", base_url=server.url, max_retries=0, open_telemetry=False
    )


@pytest.mark.parametrize(
    ("client", "provider", "path"),
    [
        (bedrock, "aws.bedrock", "/model/claude/invoke"),
        (mantle, "aws.bedrock", "/v1/messages"),
        (vertex, "gcp.vertex_ai", "/projects/p/locations/global/publishers/anthropic/models/claude:rawPredict"),
    ],
)
async def test_other_platforms(
    server: VendorServer, telemetry: Captured, client: Any, provider: str, path: str
) -> None:
    """Are named in telemetry, asked in their own way, and marked for the cache in the way that they know."""
    async with client(server) as given:
        model = AnthropicModel("claude", client=given)
        ran = await within(Agent("a", model=model, instructions="Be brief.", telemetry=telemetry).run("Hello?"))
    assert ran.output == "Hi"
    asked = server.requests[0]
    assert asked.path == path
    assert "cache_control" not in asked.json
    assert asked.json["system"][-1]["cache_control"] == MARK
    assert asked.json["messages"][-1]["content"][-1] == {**text("Hello?"), "cache_control": MARK}
    assert attributes(telemetry.span("chat"))[semconv.PROVIDER_NAME] == provider


@pytest.mark.parametrize("client", [mantle, vertex])
async def test_streams_of_other_platforms(server: VendorServer, client: Any) -> None:
    """Are the same as whole answers."""
    server.always(
        lambda asked: whole_or_streamed(
            message(text("Hi")), stream=bool(asked.json.get("stream")) or asked.path.endswith(":streamRawPredict")
        )
    )
    async with client(server) as given:
        assert (await both(AnthropicModel("claude", client=given))).message.text == "Hi"


@pytest.mark.parametrize("client", [bedrock, mantle, vertex])
async def test_keys_of_other_platforms(server: VendorServer, client: Any) -> None:
    """Are masked, too, and their errors have kinds."""
    server.always(fault("permission_error", f"{KEY} may not", status=403))
    async with client(server) as given:
        with pytest.raises(ModelError, match=r"\[masked\] may not") as caught:
            await within(AnthropicModel("claude", client=given).generate(HELLO))
    assert caught.value.error_kind == "auth"


async def test_a_client_is_used_as_it_is(server: VendorServer) -> None:
    """Its time-outs, also when more is asked for than the SDK likes to wait for in one piece; it stays open."""
    async with anthropic.AsyncAnthropic(api_key=KEY, base_url=server.url, open_telemetry=False) as client:
        model = AnthropicModel("claude", client=client, max_tokens=64_000)
        async with aclosing(model):
            await within(model.generate(HELLO))
        assert (await within(model.generate(HELLO))).message.text == "Hi"
        assert KEY not in repr(model)
    asked = server.requests[-1]
    assert (asked.json["max_tokens"], asked.headers["x-stainless-read-timeout"]) == (64_000, "600")


async def test_a_model_that_is_deprecated(server: VendorServer) -> None:
    """Is asked like any other: the SDK's warning would come with each call."""
    async with aclosing(AnthropicModel("claude-sonnet-4-5", api_key=KEY, base_url=server.url)) as model:
        await within(model.generate(HELLO))


async def test_sampling_is_asked_for_in_the_version_that_has_it(server: VendorServer) -> None:
    """Also on streams; `extra` goes over everything, and nothing of a request without sampling is old."""
    async with aclosing(AnthropicModel("claude", api_key=KEY, base_url=server.url)) as model:
        for settings in ({"top_k": 3}, {"temperature": 0.0}, {"top_p": 0.5}):
            await both(model, asking(*HELLO.messages, settings=settings))
        await both(model, asking(*HELLO.messages, settings={"extra": {"max_tokens": 3, "speed": "fast"}}))
    versions = [asked.headers["anthropic-version"] for asked in server.requests]
    assert versions[:6] == ["2023-06-01"] * 6
    assert "2023-06-01" not in versions[6:]
    assert (server.requests[-1].json["max_tokens"], server.requests[-1].json["speed"]) == (3, "fast")


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://example.com", "http://[::1", "http://"])
def test_an_address_that_is_none(url: str) -> None:
    """Is said when the model is made."""
    with pytest.raises(ConfigError, match="not a base URL"):
        AnthropicModel("claude", api_key=KEY, base_url=url)


async def test_an_empty_key_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Like the variable of an environment where nobody has set it."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY"):
        AnthropicModel("claude", api_key="")
