"""Deletion of runs that ended some time ago."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, ConfigError, semconv
from pellucid.durable import DurableRuns
from pellucid.testing import FunctionModel

if TYPE_CHECKING:
    from pellucid.durable import RunStatus, RunStore
    from pellucid_exporters.testing import Captured
    from support.stores import Location

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

AGENT = Agent("a", model=FunctionModel(lambda request: "done"))


async def ended(store: RunStore, runs: DurableRuns, *, conversation: str | None = None) -> None:
    """Submit one run that completes, and cancel another one, in a conversation if there is to be one."""
    name = conversation or "run"
    await runs.submit(AGENT, "go", run_id=f"{name}-completed", conversation_id=conversation)
    await runs.work_until_idle()
    await runs.submit(AGENT, "go", run_id=f"{name}-cancelled", conversation_id=conversation)
    await runs.cancel(f"{name}-cancelled", "no")


async def kept(store: RunStore, *run_ids: str) -> list[str]:
    """Return the runs that are in the store."""
    return [run_id for run_id in run_ids if await store.run(run_id) is not None]


async def test_ages_by_status(store: RunStore) -> None:
    """Runs of each status go after their time; conversations after the longest, and only if no status stays."""
    runs = DurableRuns(store, [AGENT])
    await ended(store, runs)
    await ended(store, runs, conversation="c")
    every = ("run-completed", "run-cancelled", "c-completed", "c-cancelled")
    assert await store.purge({"completed": 0.0, "failed": 0.0}) == 1
    assert await kept(store, *every) == list(every[1:])
    assert await store.purge({"completed": 0.0, "failed": 0.0, "cancelled": 60.0}) == 0
    assert await store.purge({"completed": 0.0, "failed": 0.0, "cancelled": 0.0}) == 3
    assert await kept(store, *every) == []


@pytest.mark.parametrize("ages", [{"waiting": 1.0}, -1.0, {"failed": float("nan")}])
async def test_what_cannot_be_deleted(store: RunStore, ages: Any) -> None:
    """Runs that have not ended are never deleted, and a time must be one."""
    with pytest.raises(ConfigError):
        await store.purge(ages)
    with pytest.raises(ConfigError):
        DurableRuns(store, [AGENT], retain=ages)


def counted(telemetry: Captured) -> list[tuple[float, Any]]:
    """Return how many runs were deleted, by status."""
    points = [point for point in telemetry.metrics if point.name == semconv.DURABLE_PURGED.name]
    return [(point.value, point.attributes[semconv.DURABLE_STATUS]) for point in points]


@pytest.mark.parametrize("status", ["completed", "cancelled"])
async def test_workers_delete(store: RunStore, location: Location, telemetry: Captured, status: RunStatus) -> None:
    """A worker deletes what is not retained, in batches, and counts it; the rest stays."""
    runs = DurableRuns(store, [AGENT], retain={status: 1000.0}, poll=0.01)
    for number in range(3):
        for run_id in (f"old-{number}", f"new-{number}"):
            await store.submit(run_id, "a", None)
            await store.cancel(run_id, "no")
    location.execute(f"UPDATE runs SET status = '{status}'")
    location.execute(
        "UPDATE runs SET created_at = created_at - 2000, updated_at = updated_at - 2000 WHERE id LIKE 'old%'"
    )
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs.work)
            while await kept(store, "old-0", "old-1", "old-2"):  # noqa: ASYNC110  (a deletion notifies nobody)
                await anyio.sleep(0.01)
            while not counted(telemetry):  # noqa: ASYNC110  (after the commit)
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert await kept(store, "new-0", "new-1", "new-2") == ["new-0", "new-1", "new-2"]
    assert counted(telemetry) == [(3, status)]
