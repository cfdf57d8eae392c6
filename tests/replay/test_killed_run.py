from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pellucid.errors import StoreError
from pellucid_exporters import StoreReader
from pellucid_replay import Tape, replay_sync
from support.local_store import eventually
from support.processes import command

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such processes")

SCRIPT = """
    import sys
    import anyio
    from pellucid import Agent, ToolCall, tool
    from pellucid.testing import ScriptedModel
    from pellucid_exporters import configure

    @tool
    async def pay(order: int) -> str:
        await anyio.sleep_forever()

    telemetry = configure("shop", local=sys.argv[1])
    model = ScriptedModel(ToolCall("pay", {"order": 7}, "call_1"))
    Agent("clerk", model=model, tools=[pay], instructions="Pay.").run_sync("Pay order 7.")
    """


def test_a_killed_run_is_replayed_up_to_its_end(tmp_path: Path) -> None:
    """The input of what was under way is recorded at its start, so the run is replayed up to the call that hung."""
    path = tmp_path / "runs.db"
    with subprocess.Popen(command(SCRIPT, path)) as process:
        reader = eventually(lambda: opened(path))
        eventually(lambda: "dispatch" in [span.phase for span in reader.in_flight()])
        process.kill()
    [run] = eventually(lambda: reader.runs(outcome="interrupted"))
    call = next(span for span in reader.spans(run.run_id) if span.phase == "dispatch")
    assert call.attributes["gen_ai.tool.call.arguments"] == '{"order":7}'
    replayed = replay_sync(None, Tape.load(path, run.run_id)).check()
    assert replayed.is_stopped
    assert replayed.tool_calls == ["pay"]


def opened(path: Path) -> StoreReader | None:
    """Return a reader of the store, once there is one."""
    try:
        return StoreReader(path)
    except StoreError:
        return None
