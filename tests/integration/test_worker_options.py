"""`pellucid worker` with options about errors and versions, as a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from integration.test_serve import started
from pellucid import Agent
from pellucid.durable import DurableRuns, open_store
from pellucid.testing import ScriptedModel
from support.processes import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid.durable import RunState

pytestmark = pytest.mark.integration

FAILING = """
from pellucid import Agent, ModelError
from pellucid.testing import FunctionModel

def fail(_request):
    raise ModelError("m", "down", error_kind="unavailable")

agent = Agent("a", model=FunctionModel(fail))
"""


def until(url: str, *statuses: str) -> RunState:
    """Return the state of the run once it has one of these statuses."""

    async def look() -> RunState:
        async with open_store(url) as store:
            runs = DurableRuns(store, [])
            with anyio.fail_after(PATIENCE):
                while (state := await runs.status("run")).status not in statuses:
                    await runs.wait_for_events("run", 0, 0.1)
            return state

    return anyio.run(look)


async def submit(url: str) -> None:
    """Submit a run."""
    async with open_store(url) as store:
        await DurableRuns(store, []).submit("a", "go", run_id="run")


@pytest.mark.parametrize(
    ("options", "status"), [("", "retrying"), ("--max-attempts 1", "failed"), ("--retry-for 0.000001", "failed")]
)
def test_errors_are_survived_unless_options_say_otherwise(tmp_path: Path, options: str, status: str) -> None:
    """By default the run goes on later; with one attempt, or no time for another, it fails."""
    url = f"sqlite:///{tmp_path}/durable.db"
    (tmp_path / "failing.py").write_text(FAILING)
    anyio.run(submit, url)
    with started(f"pellucid worker failing:agent {options}", tmp_path):
        state = until(url, "retrying", "failed")
    assert (state.status, state.attempts) == (status, 1)


def test_a_worker_of_a_version_leaves_runs_of_others(tmp_path: Path) -> None:
    """It continues the newer run that no version has begun, and not the older one, which is due as well."""
    url = f"sqlite:///{tmp_path}/durable.db"
    (tmp_path / "other.py").write_text(
        "from pellucid import Agent\nfrom pellucid.testing import FunctionModel\n"
        'agent = Agent("a", model=FunctionModel(lambda request: "two"))\n'
    )

    async def begin() -> None:
        async with open_store(url) as store:
            old = DurableRuns(store, [Agent("a", model=ScriptedModel("one"))], version="1")
            await old.submit("a", "go", run_id="old")
            claim = await store.claim("worker", ["a"], 60, versions={"a": "1"})
            assert claim is not None
            await store.release(claim)
            await old.submit("a", "go", run_id="run")

    anyio.run(begin)
    with started("pellucid worker other:agent --agents-version 2", tmp_path):
        assert until(url, "completed").output == "two"

    async def look() -> tuple[str, int]:
        async with open_store(url) as store:
            old = DurableRuns(store, [Agent("a", model=ScriptedModel("one"))], version="1")
            status = (await old.status("old")).status
            return status, await old.work_until_idle()

    assert anyio.run(look) == ("due", 1)
