"""Wait until a call has its turn: calls of serial tools run one by one, others in parallel up to a limit."""

from __future__ import annotations

from contextlib import nullcontext

from pellucid.run.calls.call import Requested
from pellucid.run.calls.chain import Outcome, TurnHandler
from pellucid.run.state import Run


def in_turn(handler: TurnHandler) -> TurnHandler:
    """Return a handler that waits before the next one."""

    async def wait(run: Run, item: Requested) -> Outcome:
        slot = item.slots if item.slots is not None else nullcontext()
        if item.binding is None or not item.binding.tool.serial:
            async with slot:
                return await handler(run, item)
        started = run.scope.now()
        async with run.serial, slot:
            return await handler(run, item._replace(queued=(run.scope.now() - started) / 1e6))

    return wait
