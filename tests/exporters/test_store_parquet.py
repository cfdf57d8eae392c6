from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from typing import TYPE_CHECKING

import pytest
from pyarrow import parquet

from pellucid import Agent, ConfigError, ToolCall, tool
from pellucid.testing import ScriptedModel
from pellucid_commands.store.command import COMMAND
from pellucid_exporters import StoreReader
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
    spans = parquet.read_table(folder / "spans.parquet").to_pylist()
    assert f"{folder / 'spans.parquet'}: {len(spans)} rows" in capsys.readouterr().out
    assert [span["name"] for span in spans] == [span.name for span in StoreReader(store).spans(result.run_id)]
    called = json.loads(next(span["attributes"] for span in spans if span["phase"] == "dispatch"))
    assert called["gen_ai.tool.call.result"] == json.dumps("rain " * 100)
    [run] = parquet.read_table(folder / "runs.parquet").to_pylist()
    assert (run["run_id"], run["agent"], run["tools"]) == (result.run_id, "guide", ["weather"])
    assert run["end"] > run["start"]
    [catalog] = parquet.read_table(folder / "catalogs.parquet").to_pylist()
    assert json.loads(catalog["tools"])[0]["name"] == "weather"
    assert parquet.read_table(folder / "events.parquet").num_rows == len(StoreReader(store).events(result.run_id))


async def test_parquet_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow, and for a folder that is a file, the error says so."""
    store = tmp_path / "runs.db"
    with storing(store) as telemetry:
        await Agent("guide", model=ScriptedModel("hi"), telemetry=telemetry).run("hello")
    with pytest.raises(ConfigError, match="cannot be written to"):
        export(store, store)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'pellucid\[parquet\]'"):
        export(store, tmp_path / "tables")


def export(store: Path, folder: Path) -> int:
    """Run `pellucid store export --parquet`."""
    parser = ArgumentParser()
    COMMAND.add_arguments(parser)
    return COMMAND.run(parser.parse_args(["export", "--store", str(store), "--parquet", str(folder)]))
