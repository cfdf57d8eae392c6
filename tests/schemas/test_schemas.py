"""Stores written by older versions are opened, migrated and continued; `make.py` made the files."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Final

import anyio
import pytest

from pellucid import Agent, Decision
from pellucid.durable import DurableRuns, open_store
from pellucid.testing import ScriptedModel
from pellucid_exporters import StoreReader
from pellucid_exporters.stored.content import RunContent
from schemas.make import TOOLS, clerk
from support.local_store import storing

pytestmark = pytest.mark.anyio

FOLDER: Final = Path(__file__).parent
LOCAL: Final = ("local_3", "local_7")
DURABLE: Final = ("durable_2", "durable_3", "durable_4")


def unpacked(name: str, folder: Path) -> Path:
    """Return a copy of a store that an older version has written."""
    path = folder / f"{name}.db"
    path.write_bytes(gzip.decompress((FOLDER / f"{name}.db.gz").read_bytes()))
    return path


@pytest.mark.parametrize("name", LOCAL)
async def test_local_store(name: str, tmp_path: Path) -> None:
    """Runs, spans, content and hubs of an older local store are read, and new runs are added to it."""
    path = unpacked(name, tmp_path)
    with storing(path) as telemetry:
        await Agent("new", model=ScriptedModel("x"), telemetry=telemetry).run("x")
    reader = StoreReader(path)
    runs = {run.agent: run for run in reader.runs()}
    assert {agent: run.status for agent, run in runs.items()} == {
        "main": "completed",
        "inner": "completed",
        "fails": "failed",
        "model-fails": "failed",
        "interrupted": "interrupted",
        "new": "completed",
    }
    main, inner = runs["main"], runs["inner"]
    assert inner.parent_run_id == main.run_id
    assert (main.iterations, main.input_tokens, main.output_tokens, main.spans) == (3, 2700, 300, 15)
    assert main.cost == pytest.approx(0.003)
    assert inner.cost == pytest.approx(0.5)
    assert (main.hubs, main.tools) == (("catalogue", "static"), ("inner", "tool_01"))
    assert [run.agent for run in reader.runs(text="question of the user")] == ["main"]
    content = RunContent(reader, reader.spans(main.run_id))
    request = content.request([span for span in content.spans if span.phase == "inference"][-1])
    assert [message.message and message.message["role"] for message in request.messages[:3]] == [
        "user",
        "assistant",
        "tool",
    ]
    assert request.missing == 0
    assert [tool["name"] for tool in request.offered.definitions or ()] == ["inner", *(tool.name for tool in TOOLS)]
    listed = next(content.tools(span) for span in content.spans if span.name == "discover_tools catalogue")
    assert [tool["name"] for tool in listed or ()] == [tool.name for tool in TOOLS]
    hubs = {hub.provider_id: hub for hub in reader.hubs(0, 2**62)}
    assert (hubs["catalogue"].objective, hubs["catalogue"].calls, sum(hubs["catalogue"].late.values())) == (0.01, 3, 3)
    assert (hubs["broken"].calls, hubs["broken"].failures) == (1, 1)
    assert reader.spans(runs["interrupted"].run_id)[-1].status == "interrupted"


@pytest.mark.parametrize("name", DURABLE)
async def test_durable_store(name: str, tmp_path: Path) -> None:
    """The runs of an older database are listed with their states, and those that have not ended are continued."""
    async with open_store(f"sqlite:///{unpacked(name, tmp_path)}") as store:
        found = {run.run_id: str(run.status) for run in (await store.list_runs()).runs}
        assert found == {"completed": "completed", "waiting": "waiting", "queued": "due"}
        runs = DurableRuns(store, [clerk()])
        state = await runs.status("waiting")
        assert [approval.tool_name for approval in state.approvals] == ["pay"]
        assert [call.tool for call in state.external] == ["owed"]
        with anyio.fail_after(60):
            await runs.work_until_idle()
            for run_id in ("waiting", "queued"):
                state = await runs.status(run_id)
                await runs.decide(run_id, [Decision(each.approval_id, approved=True) for each in state.approvals])
                for call in state.external:
                    await runs.settle(call.id, output="delivered")
            await runs.work_until_idle()
        for run_id in found:
            state = await runs.status(run_id)
            assert (str(state.status), state.output) == ("completed", "done")
