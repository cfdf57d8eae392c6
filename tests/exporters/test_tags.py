"""Tags of runs: given by callers, and found in the store, in files, on pages and in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import httpx2 as httpx
import pytest

from pellucid import Agent, CapturePolicy, ConfigError, semconv
from pellucid.cli import main
from pellucid.testing import ScriptedModel
from pellucid_exporters import File, FileReader, StoreReader
from pellucid_exporters.stored.run_search import RunFilter
from pellucid_exporters.testing import capture
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import storing
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = "<script>alert('tag')</script>"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store and a recording of a run with tags and one without."""
    folder = tmp_path_factory.mktemp("tags")
    with storing(folder / "store.db", file=File(folder / "run.jsonl")) as telemetry:
        agent = Agent("shop", model=ScriptedModel("Yes.", "No."), telemetry=telemetry)

        async def ask() -> None:
            await agent.run("Tagged?", tags=["beta", HOSTILE, "beta"])
            await agent.run("Tagged?")

        anyio.run(ask)
        assert telemetry.flush(PATIENCE)
    return folder


@pytest.mark.anyio
async def test_tags_are_on_the_span_of_the_run_in_every_capture_mode() -> None:
    """Each once, in the order in which they were given."""
    with capture(capture=CapturePolicy("off")) as telemetry:
        agent = Agent("shop", model=ScriptedModel("Yes."), telemetry=telemetry)
        await agent.run("Tagged?", tags=("plan:pro", "beta", "plan:pro"))
    assert telemetry.span("invoke_agent").attributes[semconv.RUN_TAGS] == ("plan:pro", "beta")


@pytest.mark.parametrize("tags", ["beta", {"beta"}, [""], [7], ["a\0b"], ["x" * 201], [str(n) for n in range(33)]])
@pytest.mark.anyio
async def test_wrong_tags_end_the_run_before_it_starts(tags: Any) -> None:
    """With an error that names them."""
    model = ScriptedModel("Yes.")
    with pytest.raises(ConfigError, match="tags"):
        await Agent("shop", model=model).run("Tagged?", tags=tags)
    assert not model.requests


def test_runs_are_found_by_a_tag(stored: Path) -> None:
    """In the store and in a recording; the store suggests tags, and counts runs by them."""
    for reader in (StoreReader(stored / "store.db"), FileReader(stored / "run.jsonl")):
        (row,) = reader.runs(tag="beta")
        assert (row.tags, row.answer) == ((HOSTILE, "beta"), "Yes.")
        assert reader.runs(tag="bet") == []
    store = StoreReader(stored / "store.db")
    assert [match.answer for match in store.search(RunFilter(tag="beta")).matches] == ["Yes."]
    assert store.names(10)["tag"] == [HOSTILE, "beta"]
    assert {group.name: group.runs for group in store.groups("tag", 0, 2**62)} == {HOSTILE: 1, "beta": 1}


@pytest.mark.anyio
async def test_pages_show_and_filter_tags(stored: Path) -> None:
    """The page of the run links each tag to the runs that have it."""
    transport = httpx.ASGITransport(create_viewer_app(StoreReader(stored / "store.db")))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as http:
        listed = (await http.get("/runs?tag=beta")).text
        assert listed.count('class="row"') == 1
        (row,) = StoreReader(stored / "store.db").runs(tag="beta")
        shown = (await http.get(f"/runs/{row.run_id}/")).text
        assert '<a href="/runs?tag=beta"' in shown
        assert HOSTILE not in shown + listed
        assert "&lt;script&gt;" in (await http.get("/trends?by=tag")).text


def test_the_terminal_lists_runs_by_a_tag(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And says so if there are none."""
    store = ["--store", str(stored / "store.db")]
    assert main(["runs", "--tag", "beta", *store]) == 0
    assert "Yes." in capsys.readouterr().out
    assert main(["runs", "--tag", "alpha", *store]) == 1
