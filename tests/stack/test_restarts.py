"""Each server of the stack ends and starts again: only what the docs say is lost."""

from __future__ import annotations

import subprocess
import time
from contextlib import asynccontextmanager
from functools import partial
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
    from pathlib import Path

    from pellucid_exporters.telemetry import Telemetry
    from stack.compose import Stack
    from stack.scene import Application

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.stack]

PATIENCE: Final = 300.0
SPANS: Final = 4
"""Spans of a run: itself, and one discovery, one compose and one model call."""


@pytest.fixture(scope="module")
def restarted(built: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
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
    """Jaeger keeps its traces, and gets those that are sent while it is down when it is up again."""
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
    """Telemetry that is sent while the Collector is down arrives when it is up again within the export timeout."""
    jaeger = Jaeger(restarted["jaeger"].url())
    async with sending(restarted) as runs:
        with restarted["otel-collector"].down():
            await runs.some()
    until(lambda: runs.are_in(jaeger), PATIENCE, "traces")


def hanging(stack: Stack) -> list[dict[str, Any]]:
    """Return what Alertmanager has of the hub that hangs."""
    found = get_json(stack["alertmanager"].url("/api/v2/alerts"))
    return [each for each in found if each["labels"]["alertname"] == "ToolHubSilent"]


def messages(stack: Stack, status: str, name: str = "ToolHubSilent") -> int:
    """Return how many messages the receiver got of an alert that pages."""
    return stack["relay"].log.read_text().count(f"[{status}] page {name}:")


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_prometheus(restarted: Stack, hubs: Application, kill: bool) -> None:
    """Prometheus keeps its metrics, gets those of the meantime late, and an alert that fires goes on."""
    prometheus = prometheus_of(restarted)

    def fires() -> bool:  # not the series ALERTS, which shows for five minutes what was before
        found = prometheus.api("alerts")["alerts"]
        return any(each["labels"]["alertname"] == "ToolHubSilent" and each["state"] == "firing" for each in found)

    until(fires, PATIENCE, "an alert")
    until(lambda: messages(restarted, "firing"), PATIENCE, "a page")
    series = 'gen_ai_invoke_agent_duration_seconds{job="hubs", gen_ai_agent_name="slow"}'
    counted = until(lambda: prometheus.value(f"histogram_count({series})"), PATIENCE, "metrics")
    assert counted is not None
    told = messages(restarted, "firing")
    past = f"count_over_time({series}[10m] @ {time.time()})"
    samples = prometheus.value(past)
    assert samples is not None
    with restarted["prometheus"].down(kill=kill):
        pass
    until(lambda: (prometheus.value(f"histogram_count({series})") or 0) > counted, PATIENCE, "new metrics")
    assert (prometheus.value(past) or 0) >= samples
    until(fires, PATIENCE, "the same alert")
    assert (messages(restarted, "firing"), messages(restarted, "resolved")) == (told, 0)


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_alertmanager(restarted: Stack, hubs: Application, kill: bool) -> None:
    """Alertmanager keeps silences once they are written and alerts that fire, and tells nobody a second time."""
    alertmanager = restarted["alertmanager"]
    until(lambda: hanging(restarted) and messages(restarted, "firing"), PATIENCE, "a page")
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
    told = messages(restarted, "firing")
    if kill:
        folder = alertmanager.mounted("/alertmanager")
        for name, text in {"silences": silence, "nflog": "ToolHubSilent"}.items():
            until(partial(contains, folder / name, text), PATIENCE, f"{name} on disk")
    with alertmanager.down(kill=kill):
        pass
    until(lambda: hanging(restarted), PATIENCE, "the alert again")
    silences = get_json(alertmanager.url("/api/v2/silences"))
    assert silence in [each["comment"] for each in silences]
    until(
        lambda: all(alert["status"]["state"] == "active" for alert in hanging(restarted)), PATIENCE, "an active alert"
    )
    # A page that is new now arrives after one that Alertmanager would send again.
    name = f"New{uuid4().hex}"
    subprocess.run([*amtool[:2], "alert", "add", name, "severity=page"], check=True, capture_output=True, text=True)
    until(lambda: messages(restarted, "firing", name), PATIENCE, "a new page")
    assert messages(restarted, "firing") == told


def contains(file: Path, text: str) -> bool:
    """Return whether a file is there and has a text."""
    return file.exists() and text.encode() in file.read_bytes()


def test_the_relay(restarted: Stack, hubs: Application) -> None:
    """Prometheus reaches Alertmanager without the relay; with it again, alerts have their traces again."""

    def linked() -> list[dict[str, Any]]:
        return [alert for alert in hanging(restarted) if "trace_url" in alert["annotations"]]

    until(linked, PATIENCE, "a trace")
    with restarted["relay"].down():
        until(lambda: hanging(restarted) and not linked(), PATIENCE, "an update without the relay")
    until(linked, PATIENCE, "a trace")
