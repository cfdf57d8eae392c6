"""Check a call outside of a run, where nobody can be asked and nothing can be waited for."""

from __future__ import annotations

from functools import partial
from typing import Any

from pellucid.errors import PolicyHalt, ToolError
from pellucid.run.calls.approved import needs_approval
from pellucid.run.calls.call import Call
from pellucid.run.calls.chain import Handler
from pellucid.run.calls.core import context_of, progress
from pellucid.run.state import Run
from pellucid.telemetry import Boundary
from pellucid.tools.tool import MetaTool


def unattended(handler: Handler) -> Handler:
    """Return a handler that runs the next one if the policy permits the call, and a person has approved it if needed.

    Raises:
        ToolError: the tool works only in a run, or a person must approve the call.
        PermissionDenied: the policy denies it.
    """

    async def check(run: Run, b: Boundary, call: Call) -> Any:
        tool = call.tool.tool
        if tool.execution is not None or isinstance(tool, MetaTool):
            raise ToolError(f"Tool {tool.name!r} works only in a run of an agent.", error_type="run_required")
        if call.may_run:
            must_ask = await _permit(run, b, call)
            needed, fault = await needs_approval(
                tool, call.arguments, partial(context_of, run, call, progress=progress(run, b, call))
            )
            if (must_ask or needed) and not call.is_resumed:
                raise ToolError(
                    f"Not run: a person must approve calls of tool {tool.name!r}.", error_type="approval_required"
                ) from fault
        return await handler(run, b, call)

    return check


async def _permit(run: Run, b: Boundary, call: Call) -> bool:
    """Check a call against the policy; return whether a person must approve it."""
    if (permissions := run.setup.permissions) is None:
        return False
    b.note(permission="deny")  # replaced once the policy has decided
    ruling = await permissions.rule(run.scope, call.tool, call.arguments, call.id)
    b.note(permission=ruling.permission)
    if ruling.permission == "ask":
        return True
    try:
        permissions.check(run.scope, b.span.get_span_context(), call.tool, call.id, ruling)
    except PolicyHalt as halt:
        raise ToolError(f"Not run: {halt.reason}.", error_type=halt.error_type) from halt
    return False
