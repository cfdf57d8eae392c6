"""Content in every place where it can enter, searched for in everything that leaves."""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import anyio
import anyio.to_thread
import pytest
import structlog

from pellucid import Agent, CapturePolicy, semconv
from pellucid.mcp import MCPProvider
from pellucid.testing import ScriptedModel
from pellucid_exporters.options import Otlp, Prometheus, Settings
from pellucid_exporters.pipeline import build
from pellucid_exporters.testing import capture, check_telemetry
from support.canaries import CANARY, NEVER_RECORDED, PLACES, SCENES, canary, escaped
from support.otlp_receiver import otlp_receiver
from support.runs import everything

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    from pellucid.telemetry.capture import CaptureMode

pytestmark = [
    pytest.mark.anyio,
    # The MCP SDK leaves the generators of HTTP event streams half read. trio mentions it, asyncio does not.
    pytest.mark.filterwarnings("ignore:Async generator 'http:ResourceWarning"),
]

SECRETIVE = ("redacted", "metadata", "off")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Let what a test leaves behind be found in that test."""
    yield
    gc.collect()


@pytest.fixture
def structured() -> Iterator[list[MutableMapping[str, Any]]]:
    """Lines of an application that configured structlog."""
    with structlog.testing.capture_logs() as lines:
        structlog.configure()
        yield lines
    structlog.reset_defaults()


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Any:
    """Runs about one subject."""
    return SCENES[request.param]


async def test_full_records_what_the_others_hide() -> None:
    """The runs carry each canary to where it could get out: mode `full` has all but those that are never recorded."""
    with anyio.fail_after(60), capture(capture=CapturePolicy("full")) as telemetry:
        for scene in SCENES.values():
            await scene(None)
    assert escaped(everything(telemetry)) == PLACES - NEVER_RECORDED


@pytest.mark.parametrize("mode", SECRETIVE)
@pytest.mark.parametrize("scene", SCENES, indirect=True)
async def test_nothing_gets_out_of_memory(scene: Any, mode: CaptureMode, caplog: pytest.LogCaptureFixture) -> None:
    """Spans, their events, status and links, events, metrics and their exemplars, and lines of the standard logger."""
    caplog.set_level(logging.INFO)
    with anyio.fail_after(60), capture(capture=CapturePolicy(mode)) as telemetry:
        await scene(None)
    # The application's listeners need the identity, which is not content of the run.
    telemetry.events[:] = [replace(event, identity=None) for event in telemetry.events]
    assert escaped(everything(telemetry)) == set()
    assert {span.attributes[semconv.OUTCOME] for span in telemetry.spans if span.attributes}
    check_telemetry(telemetry)
    lines = [repr(vars(record)) for record in caplog.records if record.name.startswith("pellucid")]
    assert lines
    assert escaped("\n".join(lines)) == set()


@pytest.mark.parametrize("mode", SECRETIVE)
@pytest.mark.parametrize("scene", SCENES, indirect=True)
async def test_nothing_gets_into_structlog(
    scene: Any, mode: CaptureMode, structured: list[MutableMapping[str, Any]]
) -> None:
    """An application that configured structlog gets lines without content."""
    with anyio.fail_after(60), capture(capture=CapturePolicy(mode)):
        await scene(None)
    assert {line["event"] for line in structured}
    assert escaped(repr(structured)) == set()


@pytest.mark.parametrize("mode", SECRETIVE)
async def test_nothing_gets_out_of_the_process(mode: CaptureMode) -> None:
    """No byte that a collector receives, and no line of `/metrics`, has any of it."""
    with anyio.fail_after(60), otlp_receiver("http/protobuf") as receiver:
        otlp = Otlp(endpoint=receiver.endpoint, protocol="http/protobuf")
        settings = Settings(service_name="s", otlp=otlp, prometheus=Prometheus(port=0), capture=CapturePolicy(mode))
        telemetry = build(settings)
        try:
            for scene in SCENES.values():
                await scene(telemetry)
            assert await anyio.to_thread.run_sync(telemetry.flush, 20)
            assert telemetry.prometheus_url is not None
            page = await anyio.to_thread.run_sync(_fetch, telemetry.prometheus_url)
        finally:
            await anyio.to_thread.run_sync(telemetry.shutdown)
        assert len(receiver.spans) > 50
        assert {signal for signal, _ in receiver.requests} == {"traces", "metrics", "logs"}
        sent = b"\n".join(request.SerializeToString() for _, request in receiver.requests)
        assert escaped(sent.decode("latin-1")) == set()
        assert "pellucid_tool_discovery_duration_seconds_count" in page
        assert escaped(page) == set()


def _fetch(url: str) -> str:
    with urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


async def test_no_credential_is_in_what_objects_show_of_themselves() -> None:
    """Addresses, headers, environments, tokens and dependencies are not in the `repr` of what was given them."""
    shown = [
        MCPProvider.stdio("server", canary("argument"), id="a", env={"KEY": canary("environment")}),
        MCPProvider.http(f"http://u:{canary('password')}@h.example/mcp?k={canary('query')}", id="b"),
        MCPProvider.http("http://h.example/mcp", id="c", headers={"x-key": canary("header")}),
        Otlp(endpoint="http://h.example:4318", headers={"x-key": canary("header")}),
        Prometheus(bearer_token=canary("token")),
        Agent("a", model=ScriptedModel(canary("answer")), instructions=canary("instructions")),
    ]
    assert escaped(repr(shown)) == set()


def test_the_search_finds_canaries() -> None:
    """A canary is found wherever it lies in a text, also after escaping."""
    assert escaped('{\\"sk-canary-a-b-0123456789abcdef\\": 1} sk-canary-c-0123456789abcdef') == {"a-b", "c"}
    assert not CANARY.search("sk-canary")
