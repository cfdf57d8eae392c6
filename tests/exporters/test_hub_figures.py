"""Figures of hubs in a store: of the requests that reached them, exact unless they say that they are estimated."""

from __future__ import annotations

import json
import math
import sqlite3
import time
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx2 as httpx
import pytest

from pellucid import Agent, DiscoveryProvider, PellucidError, Reliability, semconv
from pellucid.reliability import Rule, retry
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_commands.inspection import top
from pellucid_exporters import StoreReader
from pellucid_exporters.local.hub_minutes import MINUTE, MOST_DURATIONS
from pellucid_exporters.stored.rows import HubRow
from pellucid_exporters.stored.text import quantile
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import eventually, storing

if TYPE_CHECKING:
    from pellucid_exporters import Telemetry

pytestmark = pytest.mark.anyio


def discover(
    telemetry: Telemetry, *seconds: float, at: int | None = None, outcome: str = "completed", delay: float | None = None
) -> None:
    """End a discovery that made requests which took so long and ended at a time, by default just now."""
    now = at or time.time_ns()
    attributes = {semconv.PHASE: semconv.DISCOVERY, semconv.PROVIDER_ID: "hub", semconv.DISCOVERY_CACHE: "miss"}
    span = telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_span("discover_tools hub", attributes=attributes)
    for each in seconds:
        request: dict[str, Any] = {
            semconv.PROVIDER_ID: "hub",
            semconv.OUTCOME: outcome,
            semconv.HUB_LISTING_SECONDS: each,
        }
        if delay is not None:
            request |= {semconv.WAKEUP_DELAY_SECONDS: delay, semconv.HUB_LATE: False}
        span.add_event(semconv.HUB_LISTING, request, now - round(each * 1e9))
    span.end()


def hub_of(path: Path) -> HubRow:
    """Return the only hub of a store."""
    (row,) = StoreReader(path).hubs(0, time.time_ns())
    return row


def shown(path: Path, capsys: pytest.CaptureFixture[str], *, as_json: bool = False) -> str:
    """Return what `pellucid top --once` prints."""
    capsys.readouterr()
    top.run(Namespace(store=path, window=60, json=as_json, once=True, replays=False, kind=None, interval=1))
    return capsys.readouterr().out


async def page_of(path: Path, address: str) -> str:
    """Return a page of the viewer."""
    transport = httpx.ASGITransport(create_viewer_app(StoreReader(path)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        return (await http.get(address)).text


async def test_quantiles_are_durations_of_requests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are those of the hub's own requests, so none is above the slowest, and none is marked."""
    path = tmp_path / "s.db"
    hub = DiscoveryProvider(FakeHub(latency=0.02), id="hub", objective=0.005, ttl=0)
    with storing(path) as telemetry, anyio.fail_after(60):
        for _ in range(24):
            await Agent("a", model=ScriptedModel("x"), providers=[hub], telemetry=telemetry).run("x")
    reader, row = StoreReader(path), hub_of(path)
    spans = [span for run in reader.runs() for span in reader.spans(run.run_id) if span.phase == semconv.DISCOVERY]
    ordered = sorted(span.attributes[semconv.HUB_LISTING_SECONDS] for span in spans)
    assert len(ordered) == row.calls == 24
    found = [row.p50, row.p95, row.p99]
    assert [value and value.seconds for value in found] == [ordered[11], ordered[22], ordered[23]]
    text = shown(path, capsys)
    assert "≈" not in text
    assert f"p95 is {quantile(row.p95)}" in text
    assert "≈" not in await page_of(path, "/") + await page_of(path, "/hub?id=hub")


async def test_a_hang_of_ten_minutes_is_ten_minutes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Durations beyond the last bucket are not cut."""
    path = tmp_path / "s.db"
    with storing(path) as telemetry:
        discover(telemetry, 0.1, 600.0, 5000.0)
    row = hub_of(path)
    assert [value and value.seconds for value in (row.p50, row.p99)] == [600.0, 5000.0]
    (line,) = [line for line in shown(path, capsys).splitlines() if line.startswith("hub ")]
    assert line.split()[1:3] == ["10", "min"]
    assert "10 min" in await page_of(path, "/hub?id=hub&window=6h")


async def test_many_requests_of_a_minute_are_estimated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between the smallest and the largest of their minute, marked on each page and in JSON."""
    path = tmp_path / "s.db"
    number = MOST_DURATIONS + 500
    durations = [0.11 + 0.01 * place / number for place in range(number)]
    now = time.time_ns()
    with storing(path) as telemetry:
        for start in range(0, number, 100):
            discover(telemetry, *durations[start : start + 100], at=now)
            assert await anyio.to_thread.run_sync(telemetry.flush, 10)
    row = hub_of(path)
    assert row.calls == number
    for value in (row.p50, row.p95, row.p99):
        assert value is not None
        assert 0.11 <= value.seconds <= 0.12
        assert value.mark == "≈"
    assert "≈ 11" in shown(path, capsys)
    assert json.loads(shown(path, capsys, as_json=True))["hubs"][0]["estimated"] is True


async def test_minutes_of_older_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their buckets give an estimate; of durations in the last one, which had no bound, only the least is known."""
    path = tmp_path / "s.db"
    with storing(path):
        pass
    minute = time.time_ns() // MINUTE
    with closing(sqlite3.connect(path)) as connection, connection:
        insert = "INSERT INTO hub_minutes VALUES (?, ?, 'miss', ?, 10, 0, 0, x'', 0)"
        connection.executemany(insert, [(minute, "quick", 6), (minute, "hung", 15)])
    rows = {row.provider_id: row for row in StoreReader(path).hubs(0, time.time_ns() + MINUTE)}
    assert rows["quick"].p95 is not None
    assert rows["quick"].p95.mark == "≈"
    assert 0.05 < rows["quick"].p95.seconds < 0.1
    assert quantile(rows["hung"].p50) == "> 60 s"
    lines = shown(path, capsys).splitlines()
    assert any(line.startswith("hung ") and "> 60 s" in line for line in lines)
    assert any(line.startswith("quick ") and "≈ " in line for line in lines)


async def test_each_attempt_that_reached_the_hub_is_a_request(tmp_path: Path) -> None:
    """A dead hub behind a retry rule has as many failed requests as it got calls."""
    path = tmp_path / "s.db"
    dead = FakeHub(faults=[ConnectionError("gone")] * 99)
    rule = Rule(when=lambda situation: situation.attempt < 3, then=retry(backoff=0.001), kind="again")
    agent = Agent(
        "a",
        model=ScriptedModel("x"),
        providers=[DiscoveryProvider(dead, id="dead", ttl=0)],
        reliability=Reliability([rule]),
    )
    with storing(path) as telemetry, agent.override(telemetry=telemetry), anyio.fail_after(60):
        for _ in range(2):
            with pytest.raises(PellucidError):
                await agent.run("x")
    row = hub_of(path)
    assert row.calls == row.failures == len(dead.calls)
    assert row.outcomes == {"failed": len(dead.calls)}


async def test_a_hub_whose_callers_leave_hangs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A request that was given up is a failure of the hub, however soon its callers left."""
    path = tmp_path / "s.db"
    with storing(path) as telemetry:
        for _ in range(3):
            discover(telemetry, 5.0, outcome="abandoned")
    row = hub_of(path)
    assert (row.calls, row.failures, row.outcomes) == (3, 3, {"abandoned": 3})
    assert row.unanswered_since == max(row.by_minute)
    assert any(line.startswith("hub ") and line.endswith("HANGS") for line in shown(path, capsys).splitlines())


async def test_runs_that_waited_are_not_requests(tmp_path: Path) -> None:
    """Several runs that share one request count once for the hub, with the duration of the request."""
    path = tmp_path / "s.db"
    source = FakeHub(latency=0.02)
    hub = DiscoveryProvider(source, id="hub")
    with storing(path) as telemetry, anyio.fail_after(60):
        agent = Agent("a", model=ScriptedModel(*["x"] * 5), providers=[hub], telemetry=telemetry)
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(agent.run, "x")
    row = hub_of(path)
    assert row.calls == len(source.calls) == 1
    assert sum(row.cache.values()) == 5


async def test_a_busy_process_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests whose duration is mostly the event loop's delay are not over the objective, and the pages say why."""
    path = tmp_path / "s.db"
    with storing(path) as telemetry:
        for _ in range(5):
            discover(telemetry, 0.24, delay=0.2)
    row = hub_of(path)
    assert (row.delayed, row.late) == (5, {})
    assert "the process was busy" in shown(path, capsys)
    assert "the process was busy" in await page_of(path, "/")
    assert "the process was busy" in await page_of(path, "/hub?id=hub")


async def test_events_of_others_are_harmless(tmp_path: Path) -> None:
    """An event with the name of a request and impossible facts is a request of no duration."""
    path = tmp_path / "s.db"
    with storing(path) as telemetry:
        for wrong in (math.nan, math.inf, -1.0, 1e300):
            span = telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_span(
                "x", attributes={semconv.PHASE: semconv.DISCOVERY, semconv.PROVIDER_ID: "hub"}
            )
            span.add_event(semconv.HUB_LISTING, {semconv.PROVIDER_ID: "hub", semconv.HUB_LISTING_SECONDS: wrong})
            span.end()
        assert await anyio.to_thread.run_sync(lambda: eventually(lambda: StoreReader(path).hubs(0, 2**62)))
    assert hub_of(path).calls == 4
