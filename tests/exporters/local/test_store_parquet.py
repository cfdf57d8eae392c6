from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.context import Context
from opentelemetry.trace import set_span_in_context
from pyarrow import parquet

from pellucid import Agent, ConfigError, ToolCall, semconv, tool
from pellucid.testing import ScriptedModel
from pellucid_commands.store.command import COMMAND
from pellucid_exporters import Local, StoreReader
from support.local_store import storing

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


@tool
async def weather(city: str) -> str:
    """Look up the weather."""
    return "rain " * 100


async def test_a_store_is_exported_as_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs, spans, events and catalogues are tables with times, counts, and JSON with the large texts in place."""
    store, folder = tmp_path / "runs.db", tmp_path / "tables"
    model = ScriptedModel(ToolCall("weather", {"city": "Bergen"}), "Take an umbrella.")
    with storing(store) as telemetry:
        result = await Agent("guide", model=model, tools=[weather], telemetry=telemetry).run("Bergen?")
    assert export(store, folder) == 0
    [file] = folder.glob("spans/day=*/of-runs.parquet")
    spans = rows(folder, "spans")
    assert f"{file}: {len(spans)} rows" in capsys.readouterr().out
    assert [span["name"] for span in spans] == [span.name for span in StoreReader(store).spans(result.run_id)]
    called = json.loads(next(span["attributes"] for span in spans if span["phase"] == "dispatch"))
    assert called["gen_ai.tool.call.result"] == json.dumps("rain " * 100)
    [run] = rows(folder, "runs")
    assert (run["run_id"], run["agent"], run["tools"]) == (result.run_id, "guide", ["weather"])
    assert run["end"] > run["start"]
    [catalog] = parquet.read_table(folder / "catalogs.parquet").to_pylist()
    assert json.loads(catalog["tools"])[0]["name"] == "weather"
    assert len(rows(folder, "events")) == len(StoreReader(store).events(result.run_id))


def test_parquet_is_by_day_for_its_owner_only(tmp_path: Path) -> None:
    """Rows of runs are in files by the day on which a run began, others beside them, readable by their owner only."""
    store, folder = tmp_path / "runs.db", tmp_path / "tables"
    with storing(Local(store, max_age=1e10)) as telemetry:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        for day, run_id in ((1, "a"), (2, "b"), (2, "c")):
            start = day * 86_400 * 10**9 - 10**9
            root = tracer.start_span(f"run {run_id}", attributes={semconv.RUN_ID: run_id}, start_time=start)
            context = set_span_in_context(root)
            tracer.start_span(f"step of {run_id}", context, start_time=start + 2 * 10**9).end(start + 3 * 10**9)
            root.end(start + 4 * 10**9)
            tracer.start_span(f"alone {day}", Context(), start_time=start).end(start + 1)
    (folder / "spans" / "day=1970-01-01").mkdir(parents=True)
    stale = folder / "spans" / "day=1970-01-01" / "of-runs.parquet"
    stale.write_text("left over, and for everybody")
    for _ in range(2):
        assert export(store, folder) == 0
    files = sorted(folder.glob("spans/*/*"))
    named = {str(file.relative_to(folder)): parquet.read_table(file)["name"].to_pylist() for file in files}
    assert {name: sorted(names) for name, names in named.items()} == {
        "spans/day=1970-01-01/of-runs.parquet": ["run a", "step of a"],
        "spans/day=1970-01-01/of-no-run.parquet": ["alone 1"],
        "spans/day=1970-01-02/of-runs.parquet": ["run b", "run c", "step of b", "step of c"],
        "spans/day=1970-01-02/of-no-run.parquet": ["alone 2", "alone 2"],
    }
    assert {file.stat().st_mode & 0o777 for file in folder.rglob("*.parquet")} == {0o600}


async def test_parquet_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An export as Parquet without pyarrow, or to a file instead of a folder, raises an error that says so."""
    store = tmp_path / "runs.db"
    with storing(store) as telemetry:
        await Agent("guide", model=ScriptedModel("hi"), telemetry=telemetry).run("hello")
    with pytest.raises(ConfigError, match="cannot be written to"):
        export(store, store)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'pellucid\[parquet\]'"):
        export(store, tmp_path / "tables")


def rows(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Read the rows of all files of a kind."""
    return [row for file in sorted(folder.glob(f"{kind}/*/*.parquet")) for row in parquet.read_table(file).to_pylist()]


def export(store: Path, folder: Path) -> int:
    """Run `pellucid store export --parquet`."""
    parser = ArgumentParser()
    COMMAND.add_arguments(parser)
    return COMMAND.run(parser.parse_args(["export", "--store", str(store), "--parquet", str(folder)]))
