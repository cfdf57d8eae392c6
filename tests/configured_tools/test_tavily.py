"""The tools of Tavily, against a local server that speaks its API."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, ConfigError, Reliability, ToolCall, ToolResult, configured_tools
from pellucid.reliability import Rule, retry
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import Captured, capture
from support.runs import attributes, everything, within
from support.vendor_server import Answer, Hang, answer_json, vendor_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.vendor_server import Received, Reply, VendorServer

KEY = "tvly-key-of-a-test"
ARGUMENTS: dict[str, Any] = {"tavilySearch": {"query": "rain"}, "tavilyExtract": {"urls": ["https://example.com"]}}

pytestmark = pytest.mark.usefixtures("quiet_opentelemetry")
both = pytest.mark.parametrize("name", ["tavilySearch", "tavilyExtract"])


@pytest.fixture
def server() -> Iterator[VendorServer]:
    """Run a server in the place of Tavily's."""
    with vendor_server() as running:
        yield running


def agent(server: VendorServer, name: str, **options: Any) -> Agent:
    """Return an agent whose model calls the tool once."""
    provider = configured_tools({name: {"apiKey": KEY, "baseUrl": server.url, **options}})
    return Agent("a", model=ScriptedModel(ToolCall(name, ARGUMENTS[name]), "done"), providers=[provider])


async def call(server: VendorServer, name: str, **options: Any) -> ToolResult:
    """Return the result of one call in a run."""
    result = await within(agent(server, name, **options).run("x"))
    [part] = result.messages[2].parts
    assert isinstance(part, ToolResult)
    return part


@pytest.mark.anyio
async def test_search_sends_its_options_under_the_names_of_the_api(server: VendorServer, telemetry: Captured) -> None:
    """The model gives only the query of a search and reads the answer of the API; the options are sent with it."""
    answer = {"query": "rain", "results": [{"title": "Rain", "url": "https://example.com", "content": "wet"}]}
    server.answers(answer_json(answer))
    options = {"maxResults": 2, "searchDepth": "advanced", "topic": "news", "excludeDomains": ["example.org"]}
    result = await call(server, "tavilySearch", **options)
    assert (result.response, result.is_error) == (answer, False)
    [request] = server.requests
    assert (request.method, request.path, request.headers["authorization"]) == ("POST", "/search", f"Bearer {KEY}")
    assert request.json == {
        "query": "rain",
        "max_results": 2,
        "search_depth": "advanced",
        "topic": "news",
        "include_answer": False,
        "exclude_domains": ["example.org"],
    }


@pytest.mark.anyio
async def test_extract_sends_its_options_under_the_names_of_the_api(server: VendorServer, telemetry: Captured) -> None:
    """The model gives only the addresses of an extraction; the options are sent under the names of the API."""
    server.answers(answer_json({"results": [{"url": "https://example.com", "raw_content": "text"}]}))
    result = await call(server, "tavilyExtract", format="text", timeout=20)
    assert isinstance(result.response, dict)
    assert result.response["failed_results"] == []
    [request] = server.requests
    assert request.path == "/extract"
    assert request.json == {
        "urls": ["https://example.com"],
        "extract_depth": "basic",
        "format": "text",
        "timeout": 20.0,
    }


def refused(status: int, text: str = "no") -> Answer:
    """Return an error as the API reports it."""
    return answer_json({"detail": {"error": text}}, status=status)


FAILURES: list[Any] = [
    pytest.param(refused(400), "invalid_request", "BadRequestError: no", id="400"),
    pytest.param(refused(401), "auth", "InvalidAPIKeyError: no", id="401"),
    pytest.param(refused(403), "auth", "ForbiddenError: no", id="403"),
    pytest.param(refused(429), "rate_limited", "UsageLimitExceededError: no", id="429"),
    pytest.param(refused(432), "auth", "ForbiddenError: no", id="432"),
    pytest.param(refused(422), "invalid_request", "422 Unprocessable", id="422"),
    pytest.param(refused(500), "unavailable", "500 Internal Server Error", id="500"),
    pytest.param(Answer(status=401), "auth", "InvalidAPIKeyError", id="401 without a body"),
    pytest.param(answer_json({"detail": "no"}, status=429), "rate_limited", "UsageLimitExceeded", id="other body"),
    pytest.param(Answer(body=[b"<html>"]), "invalid_response", "JSONDecodeError", id="not JSON"),
    pytest.param(Answer(body=[b"\xff\xfe\x00"]), "invalid_response", "Error", id="not text"),
    pytest.param(answer_json([]), "invalid_response", "AttributeError", id="not an object"),
    pytest.param(answer_json(None), "invalid_response", "Error", id="null"),
    pytest.param(Answer(status=204), "invalid_response", "TypeError", id="204"),
]


@both
@pytest.mark.anyio
@pytest.mark.parametrize(("reply", "kind", "text"), FAILURES)
async def test_failures_are_results_with_a_kind(
    server: VendorServer, telemetry: Captured, name: str, reply: Reply, kind: str, text: str
) -> None:
    """The model reads the API's message about a failed call, and the span has the kind of the failure."""
    server.answers(reply)
    result = await call(server, name)
    assert result.is_error
    assert str(result.response).startswith(f"Tavily's {name.removeprefix('tavily').lower()} failed: ")
    assert text in str(result.response)
    assert attributes(telemetry.span(f"execute_tool {name}"))["error.type"] == kind


@both
@pytest.mark.anyio
async def test_a_call_that_takes_too_long_is_a_timeout(server: VendorServer, telemetry: Captured, name: str) -> None:
    """A call that takes longer than `timeout` ends as a timeout, even if the server has begun to answer."""
    server.answers(Answer(body=[b"{", Hang()]))
    result = await call(server, name, timeout=1)
    assert result.is_error
    assert attributes(telemetry.span(f"execute_tool {name}"))["error.type"] == "timeout"


@both
@pytest.mark.anyio
async def test_a_server_that_is_not_there_is_unavailable(server: VendorServer, telemetry: Captured, name: str) -> None:
    """A call to a server that is not there fails with the kind of a failed connection."""
    server.close()
    result = await call(server, name)
    assert result.is_error
    assert attributes(telemetry.span(f"execute_tool {name}"))["error.type"] == "unavailable"


@both
@pytest.mark.anyio
async def test_reliability_rules_may_retry(server: VendorServer, telemetry: Captured, name: str) -> None:
    """A reliability rule may repeat a call that failed as rate limited or unavailable."""
    server.answers(refused(429), refused(503), answer_json({"results": []}))
    kinds = ("rate_limited", "unavailable")
    rule = Rule(when=lambda s: s.error_kind in kinds and s.attempt < 3, then=retry(backoff=0.01), kind="transient")
    provider = configured_tools({name: {"apiKey": KEY, "baseUrl": server.url}})
    model = ScriptedModel(ToolCall(name, ARGUMENTS[name]), "done")
    result = await within(Agent("a", model=model, providers=[provider], reliability=Reliability([rule])).run("x"))
    assert result.output == "done"
    assert len(server.requests) == 3


def echo(request: Received) -> Answer:
    """Refuse a request, and repeat its key."""
    return refused(401, f"unknown key {request.headers['authorization']}")


@both
@pytest.mark.anyio
@pytest.mark.parametrize("reply", [echo, Answer(body=[b"<html>"]), refused(500), answer_json({"results": []})])
async def test_the_key_is_in_no_telemetry_and_no_error(
    server: VendorServer, caplog: pytest.LogCaptureFixture, name: str, reply: Reply
) -> None:
    """The key is in no result, telemetry or log line, even if the server repeats it and content is recorded in full."""
    caplog.set_level("DEBUG")
    server.answers(reply)
    with capture() as telemetry:
        result = await call(server, name)
    assert KEY in server.requests[0].headers["authorization"]
    assert KEY not in repr(result)
    assert KEY not in everything(telemetry)
    assert KEY not in caplog.text


@both
def test_one_provider_works_in_one_event_loop_after_another(server: VendorServer, name: str) -> None:
    """One provider works in several event loops, one after the other."""
    server.always(answer_json({"results": []}))
    tools = configured_tools({name: {"apiKey": KEY, "baseUrl": server.url}})
    for backend in ("asyncio", "trio", "asyncio"):
        model = ScriptedModel(ToolCall(name, ARGUMENTS[name]), "done")
        result = anyio.run(Agent("a", model=model, providers=[tools]).run, "x", backend=backend)
        assert isinstance(part := result.messages[2].parts[0], ToolResult)
        assert not part.is_error
    assert len(server.requests) == 3


@both
def test_the_key_can_come_from_the_environment(
    server: VendorServer, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The key may come from `TAVILY_API_KEY`, and the provider is refused if there is none."""
    server.always(answer_json({"results": []}))
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    with pytest.raises(
        ConfigError, match=rf"config\.tools\.{name}: the key is missing; set apiKey or .*TAVILY_API_KEY"
    ):
        configured_tools({name: {}})
    monkeypatch.setenv("TAVILY_API_KEY", f" {KEY}\n")
    provider = configured_tools({name: {"baseUrl": server.url}})
    Agent("a", model=ScriptedModel(ToolCall(name, ARGUMENTS[name]), "done"), providers=[provider]).run_sync("x")
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


@both
@pytest.mark.parametrize("key", ["", " ", "two words", "line\nbreak", "clé"])
def test_keys_that_no_header_can_contain_are_refused(name: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that no header can contain is refused, and the message does not repeat it."""
    monkeypatch.delenv("TAVILY_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="the key ") as caught:
        configured_tools({name: {"apiKey": key}})
    assert not key.strip() or key not in str(caught.value)


@both
def test_the_extra_is_named_if_it_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the provider without the package `tavily` raises an error that names the extra."""
    load = builtins.__import__

    def without(module: str, *args: Any, **kwargs: Any) -> Any:
        if module.startswith("tavily"):
            raise ImportError("No module named 'tavily'")
        return load(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"install pellucid\[tavily\]"):
        configured_tools({name: {"apiKey": KEY}})


@both
@pytest.mark.parametrize(
    ("option", "value"), [("timeout", 0), ("timeout", 61), ("baseUrl", "api.example.com"), ("maxResults", 21)]
)
def test_options_out_of_range_are_refused(name: str, option: str, value: Any) -> None:
    """An option out of range is refused when the provider is made."""
    with pytest.raises(ConfigError, match=rf"config\.tools\.{name}\.{option}: "):
        configured_tools({name: {"apiKey": KEY, option: value}})
