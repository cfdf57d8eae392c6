"""Each server of the stack ends and starts again: only what the docs say is lost."""

from __future__ import annotations

import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pytest

from pellucid import Agent
from pellucid.testing import FunctionModel
from pellucid_exporters.options import Otlp, Settings
from pellucid_exporters.pipeline import build
from stack import compose
from stack.compose import PROGRAMS
from stack.scene import Jaeger, applications, get_json, prometheus_of, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from pellucid_exporters.telemetry import Telemetry
    from stack.compose import Stack
    from stack.scene import Application

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.stack]

PATIENCE: Final = 300.0
SPANS: Final = 4
"""Spans of a run: itself, and one discovery, one compose and one model call."""


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory, stack: Stack) -> Iterator[Stack]:
    """Run a stack of its own, which these tests end and start again."""
    with compose.stack(tmp_path_factory.mktemp("restarted")) as running:
        yield running


@pytest.fixture(scope="module")
def hubs(restarted: Stack) -> Iterator[Application]:
    """Run an application whose hubs hang, fail and turn slow."""
    with applications(restarted, {"hubs": "hubs"}) as running:
        running["hubs"].order("break")
        yield running["hubs"]


@asynccontextmanager
async def sending(stack: Stack) -> AsyncIterator[Runs]:
    """Send runs to the collector; at the end all must have left."""
    settings = Settings(service_name="restarts", otlp=Otlp(endpoint=stack["otel-collector"].url(port=4318), timeout=60))
    telemetry = build(settings)
    yield Runs(telemetry)
    assert telemetry.flush(120)
    telemetry.shutdown()


class Runs:
    """Runs with one iteration. Attributes: traces: their ids."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.traces: set[str] = set()
        self._agent: Agent = Agent("restarts", model=FunctionModel(lambda request: "done"), telemetry=telemetry)

    async def some(self) -> None:
        """Have some more."""
        for _ in range(20):
            run = await self._agent.run("go")
            self.traces.add(run.trace_id)

    def are_in(self, jaeger: Jaeger) -> bool:
        """Return whether each trace is there with its four spans."""
        return all(len(jaeger.spans(trace)) == SPANS for trace in self.traces)


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
async def test_jaeger(restarted: Stack, kill: bool) -> None:
    """Traces are kept, and those that are sent while it is down come when it is up again."""
    jaeger = Jaeger(restarted["jaeger"].url())
    async with sending(restarted) as before:
        await before.some()
    until(lambda: before.are_in(jaeger), 60, "traces before")
    with restarted["jaeger"].down(kill=kill):
        async with sending(restarted) as missed:
            await missed.some()
    until(lambda: missed.are_in(jaeger), PATIENCE, "traces that it missed")
    assert before.are_in(jaeger)


async def test_the_collector(restarted: Stack) -> None:
    """What applications send while it is down arrives when it is up again within their export timeout."""
    jaeger = Jaeger(restarted["jaeger"].url())
    async with sending(restarted) as runs:
        with restarted["otel-collector"].down():
            await runs.some()
    until(lambda: runs.are_in(jaeger), PATIENCE, "traces")


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_prometheus(restarted: Stack, hubs: Application, kill: bool) -> None:
    """Metrics are kept, those of the meantime come late, and an alert that fires goes on."""
    prometheus = prometheus_of(restarted)
    firing = 'ALERTS{alertname="ToolHubHanging", alertstate="firing"}'
    until(lambda: prometheus.query(firing), PATIENCE, "an alert")
    runs = 'histogram_count(gen_ai_invoke_agent_duration_seconds{job="hubs", gen_ai_agent_name="slow"})'
    counted = prometheus.value(runs)
    with restarted["prometheus"].down(kill=kill):
        pass
    assert counted is not None
    until(lambda: (prometheus.value(runs) or 0) > counted, PATIENCE, "new metrics")
    assert prometheus.value(f"count_over_time(({runs})[30m:1m])") is not None
    until(lambda: prometheus.query(firing), PATIENCE, "the same alert")


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_alertmanager(restarted: Stack, hubs: Application, kill: bool) -> None:
    """Silences are kept once they are written, what fires is there again, and nobody is told a second time."""
    alertmanager = restarted["alertmanager"]

    def hanging() -> list[dict[str, Any]]:
        found = get_json(alertmanager.url("/api/v2/alerts"))
        return [each for each in found if each["labels"]["alertname"] == "ToolHubHanging"]

    def pages() -> int:
        return restarted["relay"].log.read_text().count("[firing] page ToolHubHanging")

    until(lambda: hanging() and pages(), PATIENCE, "a page")
    silence = f"comment-{uuid4().hex}"
    amtool = [str(PROGRAMS["amtool"]), f"--alertmanager.url={alertmanager.url()}", "silence"]
    runbook = [
        "add",
        "alertname=ToolHubSlow",
        "pellucid_provider_id=catalogue",
        "--duration=2h",
        f"--comment={silence}",
    ]
    subprocess.run([*amtool, *runbook, "--author=test"], check=True, capture_output=True, text=True)
    told = pages()
    if kill:
        file = alertmanager.mounted("/alertmanager") / "silences"
        until(lambda: file.exists() and silence.encode() in file.read_bytes(), PATIENCE, "the silence on disk")
    with alertmanager.down(kill=kill):
        pass
    until(hanging, PATIENCE, "the alert again")
    silences = get_json(alertmanager.url("/api/v2/silences"))
    assert silence in [each["comment"] for each in silences]
    until(lambda: all(alert["status"]["state"] == "active" for alert in hanging()), PATIENCE, "processed alerts")
    assert pages() == told


def test_the_relay(restarted: Stack, hubs: Application) -> None:
    """Without it Prometheus reaches Alertmanager all the same; with it again, alerts have their traces again."""
    relay, alertmanager = restarted["relay"], restarted["alertmanager"]

    def updated(after: str) -> str:
        found = get_json(alertmanager.url("/api/v2/alerts"))
        return max((each["updatedAt"] for each in found if each["updatedAt"] > after), default="")

    with relay.down():
        seen = updated("")
        until(lambda: updated(seen), PATIENCE, "an update without the relay")
    until(
        lambda: [one for one in get_json(alertmanager.url("/api/v2/alerts")) if "trace_url" in one["annotations"]],
        PATIENCE,
        "a trace",
    )
