"""Workers that are to end: what runs may end, and the rest is given back."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import Agent, Tool, ToolCall
from pellucid.durable import DurableRuns
from pellucid.testing import FunctionModel
from support.durable_agents import results
from support.runs import within

if TYPE_CHECKING:
    from pellucid import ToolContext
    from pellucid.durable import RunStore
    from support.stores import Location

pytestmark = pytest.mark.anyio


class Scene:
    """A run of two calls in two answers, whose tool goes on when it is let; or stays."""

    def __init__(self, lasts: float = 0.0) -> None:
        self.models = 0
        self.lasts = lasts
        self.starts: list[str] = []
        self.reached = anyio.Event()
        self.go_on = anyio.Event()
        tool = Tool(name="effect", run=self._effect)
        self.agent = Agent("a", model=FunctionModel(self._answer), tools=[tool])

    def _answer(self, request: Any) -> Any:
        self.models += 1
        return [ToolCall("effect", {}, "c-1"), ToolCall("effect", {}, "c-2"), "done"][len(request.messages) // 2]

    async def _effect(self, arguments: Any, ctx: ToolContext) -> str:
        self.starts.append(ctx.tool_call_id or "")
        self.reached.set()
        await self.go_on.wait()
        await anyio.sleep(self.lasts)
        self.lasts = 0.0
        return "effect"


async def test_a_tool_that_runs_ends_and_is_journalled(store: RunStore) -> None:
    """In the second half of the time, no model call follows; the run is due at once, and goes on where it was."""
    scene = Scene(lasts=2.1)
    scene.go_on.set()
    runs = DurableRuns(store, [scene.agent])
    run_id = await runs.submit("a", "go")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runs.work)
        await within(scene.reached.wait())
        runs.drain(4.0)
        assert runs.is_draining
        await runs.submit("a", "another", run_id="another")
    state = await runs.status(run_id)
    assert (state.status, scene.models, scene.starts) == ("due", 1, ["c-1"])
    assert (await runs.status("another")).status == "due"
    assert [entry.key.split(":")[0] for entry in await store.steps(run_id)] == ["started", "result"]
    assert await runs.workers() == ()
    await within(DurableRuns(store, [scene.agent]).work_until_idle())
    state = await runs.status(run_id)
    assert (state.output, results(state)) == ("done", {"c-1": "effect", "c-2": "effect"})
    assert scene.starts.count("c-1") == 2  # of two runs


async def test_a_claim_under_way_at_the_drain_is_given_back(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is due at once: nothing of it is done here."""
    scene, claim = Scene(), store.claim
    runs = DurableRuns(store, [scene.agent])
    run_id = await runs.submit("a", "go")

    async def claimed_while_draining(*args: Any, **options: Any) -> Any:
        runs.drain(10_000.0)
        return await claim(*args, **options)

    monkeypatch.setattr(store, "claim", claimed_while_draining)
    await within(runs.work())
    state = await runs.status(run_id)
    assert (state.status, state.attempts, scene.models) == ("due", 0, 0)
    assert await store.steps(run_id) == ()


async def test_in_the_first_half_a_run_goes_on_to_its_end(store: RunStore) -> None:
    """Though the worker claims no other."""
    scene = Scene()
    runs = DurableRuns(store, [scene.agent])
    run_id = await runs.submit("a", "go")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runs.work)
        await within(scene.reached.wait())
        runs.drain(10_000.0)
        await runs.submit("a", "another", run_id="another")
        scene.go_on.set()
    assert (await runs.status(run_id)).output == "done"
    assert (await runs.status("another")).status == "due"
    await within(runs.work())  # it is over
    assert await within(runs.work_until_idle()) == 0


@pytest.mark.parametrize("timeouts", [[0.05], [10_000.0, 0.0], [0.0]])
async def test_what_still_runs_at_the_end_is_given_back(store: RunStore, timeouts: list[float]) -> None:
    """Also at once, by a second call; the result of its tool is unknown then."""
    scene = Scene()
    runs = DurableRuns(store, [scene.agent])
    run_id = await runs.submit("a", "go")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runs.work)
        await within(scene.reached.wait())
        for timeout in timeouts:
            runs.drain(timeout)
    assert (await runs.status(run_id)).status == "due"
    scene.go_on.set()
    await within(DurableRuns(store, [scene.agent]).work_until_idle())
    assert "unknown" in str(results(await runs.status(run_id))["c-1"])


async def test_workers_are_listed_and_drained_from_elsewhere(location: Location) -> None:
    """By their names; each ends as with `drain`, and is gone from the list."""
    scene = Scene()
    async with location.open() as store, location.open() as other:
        operator = DurableRuns(other, [])
        drained = DurableRuns(store, [scene.agent], worker="one", poll=0.02)
        stays = DurableRuns(store, [Agent("b", model=FunctionModel(lambda _: "b"))], worker="two", poll=0.02)
        run_id = await drained.submit("a", "go")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(stays.work, concurrency=2))
            async with anyio.create_task_group() as ending:
                ending.start_soon(partial(drained.work, concurrency=3, drain_timeout=10_000.0))
                await within(scene.reached.wait())
                with anyio.fail_after(60):
                    while len(await operator.workers()) < 2:  # noqa: ASYNC110  (another store)
                        await anyio.sleep(0.01)
                one, two = await operator.workers()
                assert (one.name, one.agents, one.slots, one.drain_requested_at) == ("one", ("a",), 3, None)
                assert (two.name, two.agents, two.slots) == ("two", ("b",), 2)
                assert one.started_at <= one.seen_at
                assert await operator.drain_worker("three") == 0
                assert await operator.drain_worker("one") == 1
                scene.go_on.set()
            assert [(worker.name, worker.drain_requested_at) for worker in await operator.workers()] == [("two", None)]
            assert not stays.is_draining
            tasks.cancel_scope.cancel()
        assert (await operator.status(run_id)).output == "done"
        assert await operator.workers() == ()


async def test_workers_that_are_not_seen_are_dropped(location: Location) -> None:
    """By the next one that is there."""
    async with location.open() as store:
        await store.register_worker("1", "killed", ["a"], 8)
        location.execute("UPDATE workers SET seen_at = seen_at - 1000")
        assert [worker.name for worker in await store.workers()] == ["killed"]
        assert await store.register_worker("2", "there", ["a"], 8, "1.2") is False
        assert [(worker.name, worker.version) for worker in await store.workers()] == [("there", "1.2")]
