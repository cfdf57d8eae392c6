"""Several stores shown as one: runs by time, hubs added up, each run once."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from starlette.testclient import TestClient

from pellucid import Agent, ConfigError, DiscoveryError, DiscoveryProvider, ToolCall, semconv, tool
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_commands.view.stores import reader_of
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.alerts import evaluate
from pellucid_exporters.stored.run_search import RunFilter
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import emit, storing

if TYPE_CHECKING:
    from pellucid_exporters.stored.reader import Reader

pytestmark = pytest.mark.anyio

AGENTS = ("shop", "billing", "shipping")


@tool
async def look(what: str) -> str:
    """Look something up."""
    return f"{what} is fine. " * 50


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """Give a folder with three stores, in the order of their runs, and other files."""
    for name in AGENTS:
        with storing(tmp_path / name / "telemetry.db", service_name=name) as telemetry:
            hub = DiscoveryProvider(
                FakeHub([look], faults=[ConnectionError()] if name == "shipping" else []),
                id="hub",
                ttl=0,
                objective=0.2,
            )
            model = ScriptedModel(ToolCall("look", {"what": name}), f"answer of {name}")
            with suppress(DiscoveryError):
                await Agent(name, model=model, providers=[hub], telemetry=telemetry).run(f"question to {name} " * 20)
            emit(telemetry, f"alone in {name}")
    (tmp_path / "notes.db").write_text("no store")
    return tmp_path


async def test_runs_of_many_stores_are_in_the_order_of_their_times(folder: Path) -> None:
    """All of them, by each filter and page, with the content of each, and spans of no run."""
    reader = reader_of([folder])
    runs = reader.runs()
    assert [run.agent for run in runs] == [*AGENTS[::-1]]
    assert [run.agent for run in reader.runs(limit=2)] == [*AGENTS[:0:-1]]
    assert [run.agent for run in reader.runs(before=runs[0].start)] == [*AGENTS[1::-1]]
    assert [run.agent for run in reader.runs(agent="billing")] == ["billing"]
    assert [run.agent for run in reader.runs(text="question to shop")] == ["shop"]
    for run in runs:
        [own] = [each for each in stores(folder) if each.run(run.run_id)]
        assert reader.run(run.run_id) == reader.run(run.run_id[:8]) == reader.run(run.trace_id) == own.run(run.run_id)
        assert reader.spans(run.run_id) == own.spans(run.run_id)
        assert reader.events(run.run_id) == own.events(run.run_id)
        assert reader.trace(run.trace_id) == [run]
        digests = [str(span.attributes.get(semconv.CATALOG_DIGEST)) for span in own.spans(run.run_id)]
        assert reader.catalogs(digests) == own.catalogs(digests)
        texts = [
            value["$body"]
            for span in own.spans(run.run_id)
            for value in span.attributes.values()
            if isinstance(value, dict)
        ]
        assert reader.bodies(texts) == own.bodies(texts)
    assert [span.name for span in reader.spans("")] == [f"alone in {name}" for name in AGENTS]
    assert reader.run("no such run") is None


async def test_searches_and_sums_are_those_of_all_stores(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matches in the order of their times, counts by hour and agent, names; of a bounded search, as far as all went."""
    reader = reader_of([folder])
    found = reader.search(RunFilter())
    assert [match.agent for match in found.matches] == [*AGENTS[::-1]]
    assert (found.examined, found.older) == (3, None)
    assert [row.run_id for row in reader.rows([match.run_id for match in found.matches])] == [
        match.run_id for match in found.matches
    ]
    assert [match.agent for match in reader.search(RunFilter(agent="billing")).matches] == ["billing"]
    assert sum(count.runs for count in reader.hours(0, 2**62)) == 3
    assert reader.names(10)["agent"] == sorted(AGENTS)
    [every] = reader.groups(None, 0, 2**62)
    assert (every.runs, every.failed, len(every.durations)) == (3, 1, 3)
    assert [(group.name, group.runs) for group in reader.groups("hub", 0, 2**62)] == [("hub", 3)]
    with storing(folder / "shop" / "telemetry.db") as telemetry:
        for _ in range(3):
            await Agent("shop", model=ScriptedModel("hi"), telemetry=telemetry).run("again")
    monkeypatch.setattr("pellucid_exporters.local.run_search.BOUND", 2)
    bounded = reader.search(RunFilter())
    assert bounded.older is not None
    assert [match.agent for match in bounded.matches] == ["shop", "shop"]
    assert bounded.examined == 2


async def test_hubs_of_many_stores_are_added_up(folder: Path) -> None:
    """Requests, failures and quantiles of a hub are those of all stores; so are alerts."""
    reader = reader_of([folder])
    [hub] = reader.hubs(0, 2**62)
    own = [row for each in stores(folder) for row in each.hubs(0, 2**62)]
    assert len(own) == 3
    assert (hub.calls, hub.failures) == (sum(row.calls for row in own), sum(row.failures for row in own))
    assert hub.failures > 0
    assert sum(map(sum, hub.by_minute.values())) == hub.calls
    durations = sorted(
        value for row in own for each in row.samples.values() for sample in each for value in sample.durations
    )
    assert hub.p50 is not None
    assert hub.p50.seconds == durations[(len(durations) - 1) // 2]
    assert hub.objective == 0.2
    processes = [row.process for row in reader.calls(0, 2**62, ["discovery"])]
    assert len(set(processes)) == 3
    assert reader.changes() == sum(each.changes() for each in stores(folder))
    assert evaluate(reader, max(run.end or 0 for run in reader.runs())) is not None


async def test_a_run_of_two_stores_is_one(folder: Path) -> None:
    """A copy of a store adds nothing to runs and spans; a trace over two processes is one."""
    shutil.copy(folder / "shop" / "telemetry.db", folder / "copy.db")
    reader = reader_of([folder / "shop", folder / "copy.db", folder / "billing"])
    assert [run.agent for run in reader.runs()] == ["billing", "shop"]
    [shop] = [run for run in reader.runs() if run.agent == "shop"]
    own = StoreReader(folder / "copy.db")
    assert reader.spans(shop.run_id) == own.spans(shop.run_id)
    assert reader.events(shop.run_id) == own.events(shop.run_id)
    assert reader.trace(shop.trace_id) == [shop]


async def test_the_pages_show_many_stores(folder: Path) -> None:
    """The list has the runs of all, and a run of each has its page."""
    reader = reader_of([folder / "shop", folder / "billing"])
    app = create_viewer_app(reader, label="shop, billing")

    def look_at() -> None:
        with TestClient(app, base_url="http://127.0.0.1") as client:
            listed = client.get("/runs").text
            for run in reader.runs():
                assert run.run_id in listed
                assert f"answer of {run.agent}" in client.get(f"/runs/{run.run_id}/").text
            assert "hub" in client.get("/").text

    await anyio.to_thread.run_sync(look_at)


def test_a_folder_without_a_store_is_named(tmp_path: Path) -> None:
    """An empty folder, and a file that is no store."""
    (tmp_path / "notes.db").write_text("no store")
    with pytest.raises(ConfigError, match="no store in this folder"):
        reader_of([tmp_path])
    with pytest.raises(ConfigError, match=r"notes\.db"):
        reader_of([tmp_path / "notes.db"])


def stores(folder: Path) -> list[Reader]:
    """Return a reader of each store."""
    return [StoreReader(folder / name / "telemetry.db") for name in AGENTS]
