"""Tools of durable runs, and what tests do with these runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from pellucid import Decision, Tool, ToolResult
from support.runs import within

if TYPE_CHECKING:
    from pellucid import ToolContext
    from pellucid.durable import DurableRuns, RunState
    from support.stores import Location


async def nothing(arguments: Any, ctx: ToolContext) -> str:
    """Do nothing."""
    return f"{ctx.tool_call_id} done"


DO = Tool(name="do", run=nothing)
JOB = Tool(name="job", run=nothing, execution="external-dispatch")
OWED = Tool(name="owed", run=nothing, execution="external-dispatch", pending="wait")
PAY = Tool(name="pay", run=nothing, needs_approval=True)


class Stop:
    """A worker that is stopped by what it runs."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()

    async def now(self, *_: object) -> Any:
        """Stop the worker."""
        self._scope.cancel()
        await anyio.sleep_forever()

    async def work(self, runs: DurableRuns) -> None:
        """Work until stopped."""
        with self._scope:
            await within(runs.work_until_idle())
        assert self._scope.cancelled_caught


def results(state: RunState) -> dict[str, Any]:
    """Return the results in a conversation, by ids of calls."""
    parts = [part for message in state.messages for part in message.parts if isinstance(part, ToolResult)]
    return {part.id or "": part.response for part in parts}


async def ended(runs: DurableRuns, run_id: str, location: Location | None = None) -> RunState:
    """Work until the run has ended; decide and settle what it waits for, and end leases of passes that did not end."""
    with anyio.fail_after(60):
        while not (state := await runs.status(run_id)).is_over:
            await runs.work_until_idle()
            if location is not None:
                location.end_leases()
            state = await runs.status(run_id)
            await runs.decide(run_id, [Decision(item.approval_id, approved=True) for item in state.approvals])
            for call in state.external:
                await runs.settle(call.id, output=1)
    return state
