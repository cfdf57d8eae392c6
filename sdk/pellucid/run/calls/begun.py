"""Write to the journal of a durable run that a tool is about to run."""

from __future__ import annotations

from typing import Any

from anyio.lowlevel import checkpoint

from pellucid.run.calls.call import Call
from pellucid.run.calls.chain import Handler
from pellucid.run.state import Run
from pellucid.telemetry import Boundary


def begun(handler: Handler) -> Handler:
    """Return a handler that writes before the next one."""

    async def write(run: Run, b: Boundary, call: Call) -> Any:
        if call.runs_here:
            await run.journal.write_started(run, b, call.id, call.request.name, can_repeat=call.tool.tool.idempotent)
            await checkpoint()  # no tool begins in a run that was stopped meanwhile: its result would be lost
            run.check_open()
        return await handler(run, b, call)

    return write
