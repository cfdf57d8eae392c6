"""Checks that a tool call must pass before it runs: known tool, valid arguments, permission and approval."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pellucid.approvals.decisions import ApprovalRequest, Settled
from pellucid.context import ToolContext
from pellucid.errors import PolicyHalt, RunCancelled, ToolError
from pellucid.messages import ToolCall
from pellucid.offer.policy import Ruling
from pellucid.run.invocation import alternatives_to, needs_approval, read_arguments, unknown_tool
from pellucid.run.outcomes import Waiting
from pellucid.run.state import Run
from pellucid.run.tool_results import halted_text
from pellucid.telemetry import Boundary
from pellucid.tools.catalog import Catalog, Denied
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import MetaTool
from pellucid.types import JSONObject


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, resolved before its span starts.

    Attributes:
        request: The call as the model requested it.
        started: Time at which the checks started, by `Scope.now()`; start time of the span.
        binding: The tool that the name resolves to, even if the policy denies it; None if there is none.
        denied: Denial of the tool by the policy; the model reads the text of `PermissionDenied`.
        error: Error if the tool cannot be called now: unknown, removed, changed or not active.
        arguments: Arguments for the tool, or the error if they are not valid; None if no tool gets them.
        approval: Outcome of the approval request, if there was one.
        is_resumed: Whether the run that this one resumes already asked for permission and approval.
        queued: Milliseconds that the call of a serial tool waited for its turn.
        ruling: The policy's ruling on the call, if it was asked.
    """

    request: ToolCall
    started: int
    binding: Binding | None
    denied: Denied | None
    error: ToolError | None
    arguments: JSONObject | ToolError | None
    approval: Settled | None
    is_resumed: bool
    queued: float | None
    ruling: Ruling | None = None

    @property
    def id(self) -> str:
        """Id of the call; inference assigns one if the model did not."""
        assert self.request.id is not None
        return self.request.id

    @property
    def runs_here(self) -> bool:
        """Whether the call is about to run a tool of the application, in this process."""
        if self.binding is None or self.denied is not None or not isinstance(self.arguments, dict):
            return False
        tool = self.binding.tool
        is_refused = self.approval is not None and self.approval.error is not None
        return not (is_refused or tool.execution == "external-dispatch" or isinstance(tool, MetaTool))

    @property
    def must_not_repeat(self) -> bool:
        """Whether the call is about to run a tool that may not run twice."""
        return self.runs_here and self.binding is not None and not self.binding.tool.idempotent


def bind(
    run: Run,
    catalog: Catalog,
    request: ToolCall,
    approvals: Mapping[str, Settled] | None = None,
    queued: float | None = None,
) -> Call:
    """Resolve the tool of a call and read its arguments; `approvals` is None unless the run was resumed."""
    started, name = run.scope.now(), request.name
    binding, denied = catalog.find_listed(name), catalog.denied.get(name)
    error: ToolError | None = None
    arguments: JSONObject | ToolError | None = None
    if binding is None:
        error = _unknown(run, catalog, name)
    elif denied is None and (error := catalog.refuse(name)) is None:
        arguments = read_arguments(binding.tool, request)
    approval = approvals.get(request.id or "") if approvals is not None else None
    return Call(request, started, binding, denied, error, arguments, approval, approvals is not None, queued)


async def decide(run: Run, call: Call) -> Call | Waiting:
    """Return a call with the policy's ruling, or a `Waiting` if a person must approve it."""
    binding, arguments, permissions = call.binding, call.arguments, run.setup.permissions
    if call.is_resumed or binding is None or not isinstance(arguments, dict):
        return call
    ruling: Ruling | None = None
    if permissions is not None:
        ruling = await permissions.rule(run.scope, binding, arguments, call.id)
        call = replace(call, ruling=ruling)
        if ruling.permission in ("deny", "halt"):
            return call
    is_needed, fault = await needs_approval(binding.tool, arguments, partial(context_of, run, call))
    reason = ruling.reason if ruling is not None and ruling.permission == "ask" else None
    if not is_needed and reason is None:
        return call
    now, timeout = run.scope.now() / 1e9, run.limits.approval_timeout
    request = ApprovalRequest(
        approval_id=f"approval_{uuid.uuid4().hex if run.journal is None else run.id_of(call.id).hex}",
        tool_call_id=call.id,
        tool_name=binding.tool.name,
        arguments=arguments,
        expires_at=now + timeout if timeout is not None else None,
        requested_at=now,
        reason=reason,
        input_schema=binding.tool.input_schema if run.journal is not None else None,
    )
    return Waiting(request, binding.provider_id, fault)


def context_of(run: Run, call: Call, **more: Any) -> ToolContext:
    """Return the context of a tool call."""
    return ToolContext(
        run_id=run.scope.run_id,
        iteration=run.scope.iteration,
        tool_call_id=call.id,
        idempotency_key=str(run.id_of(call.id)),
        identity=run.scope.identity,
        signal=run.signal,
        deadline=run.scope.deadline,
        deps=run.deps,
        **more,
    )


def resolve(run: Run, b: Boundary, call: Call) -> Binding:
    """Count the call, and return its tool if it may run.

    Raises:
        ToolError: the call may not run; the text tells the model what to do.
    """
    if (limit := run.nesting.count_call()) is not None:
        raise ToolError(
            f"Not run: the limit of {limit} tool calls for this run is reached. Answer with what you have.",
            error_type="max_tool_calls",
        )
    check_halted(run)
    if call.denied is not None and run.setup.permissions is not None:
        b.note(permission="deny")
        ruling = Ruling("deny", call.denied.reason)
        run.setup.permissions.check(run.scope, b.span.get_span_context(), call.denied.binding, call.id, ruling)
    if call.error is not None:
        raise call.error
    assert call.binding is not None  # otherwise there is an error
    return call.binding


def _unknown(run: Run, catalog: Catalog, name: str) -> ToolError:
    if name in run.offering.names:
        alternatives = alternatives_to(name, catalog)
        return ToolError(f"Tool {name!r} was removed since it was offered. {alternatives}", error_type="tool_removed")
    return unknown_tool(name, catalog)


async def permit(run: Run, b: Boundary, binding: Binding, call: Call, arguments: JSONObject) -> None:
    """Check a call against the policy, if there is one; a halt ends the run once every call has its result."""
    permissions = run.setup.permissions
    if permissions is None:
        return
    b.note(permission="deny")  # replaced once the policy has decided
    ruling = call.ruling or await permissions.rule(run.scope, binding, arguments, call.id)
    if ruling.permission == "ask" and call.is_resumed:
        b.note(permission="ask")
        return
    try:
        permissions.check(run.scope, b.span.get_span_context(), binding, call.id, ruling)
    except PolicyHalt as halt:
        halt_run(run, b, halt)
        raise
    b.note(permission="allow")


def halt_run(run: Run, b: Boundary, halt: PolicyHalt) -> None:
    """Record that the policy has ended the run."""
    b.note(permission="halt")
    run.halted = run.halted or halt


def check_halted(run: Run) -> None:
    """Check that the policy has not ended the run.

    Raises:
        ToolError: the policy has ended it.
    """
    if run.halted is not None:
        raise ToolError(halted_text(run.halted), error_type=run.halted.error_type)


def check_running(run: Run) -> None:
    """Check that the run was not halted or stopped, also before the event loop delivers the cancellation.

    Raises:
        ToolError: the policy halted the run.
        RunCancelled, TimeoutError: the run was stopped.
    """
    check_halted(run)
    if (reason := run.stop_cause()) is not None:
        raise TimeoutError("the run's deadline has passed") if reason == "deadline" else RunCancelled(run.scope.agent)
