"""Ask a person to approve a call, if its tool or the policy wants that."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import isawaitable

from pellucid.approvals.decisions import ApprovalRequest
from pellucid.concurrency.race import race
from pellucid.context import ToolContext
from pellucid.failures import contained
from pellucid.run.calls.call import Call
from pellucid.run.calls.chain import CallHandler, Outcome
from pellucid.run.calls.core import context_of, span_of
from pellucid.run.outcomes import Waiting
from pellucid.run.state import Run
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject


def approved(handler: CallHandler) -> CallHandler:
    """Return a handler that runs the next one unless a person must be asked first."""

    async def ask(run: Run, call: Call) -> Outcome:
        with _recorded(run, call):
            decided = await _decide(run, call)
        run.check_open()
        return decided if isinstance(decided, Waiting) else await handler(run, decided)

    return ask


@contextmanager
def _recorded(run: Run, call: Call) -> Iterator[None]:
    """Give the call its span here if the run ends before the tool begins."""
    try:
        yield
    except BaseException:
        if not run.closed:
            with span_of(run, call) as b:
                b.input(call.request.arguments)
                raise
        raise


async def _decide(run: Run, call: Call) -> Call | Waiting:
    """Return a call with the policy's ruling, or a `Waiting` if a person must approve it."""
    permissions = run.setup.permissions
    if call.is_resumed or not call.may_run:
        return call
    binding, ruling = call.tool, None
    if permissions is not None:
        ruling = await permissions.rule(run.scope, binding, call.arguments, call.id)
        call = call._replace(ruling=ruling)
        if ruling.permission in ("deny", "halt"):
            return call
    is_needed, fault = await needs_approval(binding.tool, call.arguments, partial(context_of, run, call))
    reason = ruling.reason if ruling is not None and ruling.permission == "ask" else None
    if not is_needed and reason is None:
        return call
    return Waiting(_request(run, call, reason), binding.provider_id, fault)


def _request(run: Run, call: Call, reason: str | None) -> ApprovalRequest:
    now, timeout, tool = run.scope.now() / 1e9, run.limits.approval_timeout, call.tool.tool
    return ApprovalRequest(
        approval_id=f"approval_{run.id_of(call.id).hex if run.journal.is_durable else uuid.uuid4().hex}",
        tool_call_id=call.id,
        tool_name=tool.name,
        arguments=call.arguments,
        expires_at=now + timeout if timeout is not None else None,
        requested_at=now,
        reason=reason,
        input_schema=tool.input_schema if run.journal.is_durable else None,
        annotations=tool.annotations.brief if tool.annotations is not None else None,
    )


async def needs_approval(
    tool: Tool, arguments: JSONObject, context: Callable[[], ToolContext]
) -> tuple[bool, Exception | None]:
    """Return whether a person must approve a call, and the exception if the tool's predicate failed: then yes."""
    if not callable(tool.needs_approval):
        return bool(tool.needs_approval), None
    try:
        answer = tool.needs_approval(arguments, context())
        return bool(await race(_awaited, answer) if isawaitable(answer) else answer), None
    except BaseException as error:  # noqa: BLE001  (the predicate is the application's; the request reports its failure)
        return True, contained(error)


async def _awaited(answer: Awaitable[bool]) -> bool:
    return await answer
