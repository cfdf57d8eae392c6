"""End the run if the policy halts an activation of tools."""

from __future__ import annotations

from typing import Any

from pellucid.errors import PolicyHalt
from pellucid.run.calls.call import Call
from pellucid.run.calls.chain import Handler
from pellucid.run.calls.core import halt_run
from pellucid.run.state import Run
from pellucid.telemetry import Boundary


def activating(handler: Handler) -> Handler:
    """Return a handler that notes a halt which the next one raises."""

    async def activate(run: Run, b: Boundary, call: Call) -> Any:
        try:
            return await handler(run, b, call)
        except PolicyHalt as halt:
            halt_run(run, b, halt)
            raise

    return activate
