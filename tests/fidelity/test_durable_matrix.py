"""Generated durable runs: results that come in any order, twice, late or never, and workers that stop or die."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pellucid import Agent, Decision, Tool, ToolCall, semconv
from pellucid.durable import DurableRuns, open_store
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import capture
from support.runs import within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import ToolContext
    from pellucid.durable import RunStore, Settlement
    from pellucid_exporters.testing import Captured

Action: TypeAlias = Literal["settle", "fail", "decide", "work", "die", "cancel"]
CALLS: Final = ("job", "owed", "expires", "pays", "quick", "stops")


@dataclass(frozen=True)
class Script:
    """One run. Attributes: steps: tools that the model calls at once; actions: what happens, each to some call."""

    steps: Sequence[Sequence[str]]
    actions: Sequence[tuple[Action, int]]


scripts: Final = st.builds(
    Script,
    steps=st.lists(st.lists(st.sampled_from(CALLS), min_size=1, max_size=3, unique=True), min_size=1, max_size=2),
    actions=st.lists(
        st.tuples(
            st.sampled_from(("settle", "settle", "fail", "decide", "work", "work", "die", "cancel")), st.integers(0, 5)
        ),
        max_size=12,
    ),
)


@dataclass
class Stage:
    """A script as it is played.

    Attributes:
        settlements: Outcomes, by the labels with which they must be counted.
        deaths: Workers that died.
    """

    script: Script
    store: RunStore
    settlements: Counter[tuple[str | None, str | None, str, str]] = field(default_factory=Counter)
    deaths: int = 0

    def __post_init__(self) -> None:
        self.scope = anyio.CancelScope()
        steps = [[ToolCall(name, {}) for name in step] for step in self.script.steps]
        # The model is asked once more for each result that is delivered by `async_status`.
        self.agent = Agent("a", model=ScriptedModel(*steps, *["more"] * 8), tools=self.tools())
        self.runs = DurableRuns(self.store, [self.agent])

    def tools(self) -> list[Tool]:
        """Return the tools."""
        stopped = False

        async def run(arguments: Any, ctx: ToolContext) -> str:
            return "done"

        async def stop(arguments: Any, ctx: ToolContext) -> str:
            nonlocal stopped
            if not stopped:
                stopped = True
                self.scope.cancel()
                await anyio.sleep_forever()
            return "done"

        external: dict[str, Any] = {"run": run, "execution": "external-dispatch"}
        return [
            Tool(name="job", **external),
            Tool(name="owed", pending="wait", **external),
            Tool(name="expires", pending="wait", expires_in=0.001, **external),
            Tool(name="pays", run=run, needs_approval=True),
            Tool(name="quick", run=run),
            Tool(name="stops", run=stop, idempotent=True),
        ]

    async def work(self) -> None:
        """Work until no run is due; a tool may stop the worker."""
        self.scope = anyio.CancelScope()
        with self.scope:
            await within(self.runs.work_until_idle())
        if self.scope.cancel_called:
            await self.work()

    async def play(self) -> str:
        """Play the script, and settle what is left; return the status of the run."""
        run_id = await self.runs.submit(self.agent, "go", run_id="run")
        for action, number in self.script.actions:
            await self.act(action, number)
        while not (state := await self.runs.status(run_id)).is_over:
            await self.work()
            for call in await self.store.calls(run_id):
                if call.status == "processing":
                    await (self.settle(call.id, call.tool) if call.kind == "external" else self.decide(call.id))
        return state.status

    async def act(self, action: Action, number: int) -> None:
        """Do one thing, to one of the calls that there are."""
        calls = await self.store.calls("run")
        external = [call for call in calls if call.kind == "external"]
        approvals = [call for call in calls if call.kind == "approval"]
        if action == "work":
            await self.work()
        elif action == "cancel" and number == 0:
            await self.runs.cancel("run", "enough")
        elif action == "die" and await self.store.claim("dead", ["a"], 0.0) is not None:
            self.deaths += 1
            await self.work()
        elif action in ("settle", "fail") and external:
            call = external[number % len(external)]
            await self.settle(call.id, call.tool, failed=action == "fail")
        elif action == "decide" and approvals:
            await self.decide(approvals[number % len(approvals)].id, approved=number % 2 == 0)

    async def settle(self, result_id: str, tool: str, *, failed: bool = False) -> None:
        """Settle a call."""
        result = {"error": "broken"} if failed else {"output": "result"}
        settlement = await self.runs.settle(result_id, **result)  # type: ignore[arg-type]
        self.note(settlement, tool, "external", "failed" if failed else "completed")

    async def decide(self, approval_id: str, *, approved: bool = True) -> None:
        """Decide about a call."""
        [settlement] = await self.runs.decide("run", [Decision(approval_id, approved)])
        self.note(settlement, "pays", "approval", "completed")

    def note(self, settlement: Settlement, tool: str, kind: str, status: str) -> None:
        """Note what must be counted."""
        self.settlements[tool, kind, settlement.outcome, status] += 1

    async def check(self, telemetry: Captured, status: str) -> None:
        """Compare what was counted and emitted with what happened."""
        calls = await self.store.calls("run")
        expired = Counter(("expires", "external", "settled", "expired") for call in calls if call.status == "expired")
        assert counted(telemetry, semconv.DURABLE_SETTLEMENTS) == self.settlements + expired
        late = sum(
            number
            for (_, kind, outcome, _), number in self.settlements.items()
            if (kind, outcome) == ("external", "late")
        )
        assert counted(telemetry, semconv.EXTERNAL_LATE).total() == late
        assert counted(telemetry, semconv.DURABLE_RECOVERIES).total() == self.deaths
        passes = counted(telemetry, semconv.DURABLE_PASSES)
        assert passes["a", "completed"] == (status == "completed")
        dispatched = Counter(event.result_id for event in telemetry.events if event.name == "async_tool.dispatched")  # type: ignore[attr-defined]
        assert set(dispatched.values()) <= {1}
        assert {call.id for call in calls if call.dispatched_at is not None} <= set(dispatched)
        settled = Counter(event.result_id for event in telemetry.events if event.name == "async_tool.settled")  # type: ignore[attr-defined]
        assert set(settled.values()) <= {1}
        if status == "completed":
            assert set(settled) == set(dispatched)


def counted(telemetry: Captured, metric: semconv.Metric) -> Counter[tuple[Any, ...]]:
    """Return the values of a counter by its labels, without zeros."""
    points = [point for point in telemetry.metrics if point.name == metric.name and point.value]
    return Counter(
        {tuple(point.attributes.get(name) for name in metric.attributes): int(point.value) for point in points}
    )


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@settings(
    max_examples=50,
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
@given(script=scripts)
def test_whatever_happens_to_a_durable_run_is_counted_once(backend: str, script: Script) -> None:
    """Settlements, passes and recoveries are counted as callers saw them; events of a call are emitted once."""

    async def play() -> None:
        with TemporaryDirectory() as folder, capture() as telemetry:
            async with open_store(f"sqlite:///{folder}/runs.db") as store:
                stage = Stage(script, store)
                status = await stage.play()
                await stage.check(telemetry, status)

    anyio.run(play, backend=backend)
