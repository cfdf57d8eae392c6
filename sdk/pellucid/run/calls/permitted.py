"""Check a call against the permission policy."""

from __future__ import annotations

from typing import Any

from pellucid.errors import PolicyHalt
from pellucid.run.calls.call import Call
from pellucid.run.calls.chain import Handler
from pellucid.run.calls.core import halt_run
from pellucid.run.state import Run
from pellucid.telemetry import Boundary


def permitted(handler: Handler) -> Handler:
    """Return a handler that runs the next one if the policy permits it; a halt ends the run after its calls."""

    async def permit(run: Run, b: Boundary, call: Call) -> Any:
        permissions, binding = run.setup.permissions, call.tool
        assert permissions is not None  # otherwise the chain does not have this link
        b.note(permission="deny")  # replaced once the policy has decided
        ruling = call.ruling or await permissions.rule(run.scope, binding, call.arguments, call.id)
        if ruling.permission == "ask" and call.is_resumed:
            b.note(permission="ask")
        else:
            try:
                permissions.check(run.scope, b.span.get_span_context(), binding, call.id, ruling)
            except PolicyHalt as halt:
                halt_run(run, b, halt)
                raise
            b.note(permission="allow")
        return await handler(run, b, call)

    return permit
