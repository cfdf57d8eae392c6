"""Run a tool under the reliability rules, with all attempts in one span."""

from __future__ import annotations

from typing import Any

from pellucid.errors import PermissionDenied
from pellucid.events import ToolFailed
from pellucid.reliability import Reaction, Subject
from pellucid.run.calls.call import Call
from pellucid.run.calls.chain import Handler
from pellucid.run.outcomes import Enqueued, Suspended
from pellucid.run.rules import gate_of
from pellucid.run.state import Run
from pellucid.telemetry import Boundary


def guarded(handler: Handler) -> Handler:
    """Return a handler that makes the attempts that the rules want."""

    async def guard(run: Run, b: Boundary, call: Call) -> Any:
        if not call.is_tried:
            return await handler(run, b, call)
        tool = call.tool.tool

        def obstacle(reaction: Reaction, error: BaseException | None) -> str | None:
            if run.halted is not None or isinstance(error, PermissionDenied):
                return "denied"  # no rule may override or replace a denial
            if reaction.then == "retry_other":
                return "no_other"
            return "not_idempotent" if reaction.then == "retry" and not tool.idempotent else None

        assert run.setup.reliability is not None  # otherwise the chain does not have this link
        gate = gate_of(run, run.setup.reliability, Subject("tool", tool.name, tool.source), obstacle, b)

        async def attempt() -> Any:
            # The ruling of the policy holds for the first attempt only.
            attempted = call if gate.attempt == 1 else call._replace(ruling=None)
            return await gate.run_attempt(
                b, ToolFailed, lambda: handler(run, b, attempted), pending=(Suspended, Enqueued)
            )

        return await gate.run(attempt, fall_back=Reaction.result)

    return guard
