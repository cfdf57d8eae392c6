"""A tool call: its tool, its arguments, and why it may not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter

from pellucid.approvals.decisions import Settled
from pellucid.context import ToolContext
from pellucid.errors import PolicyHalt, RunCancelled, ToolError
from pellucid.messages import ToolCall
from pellucid.run.calls.invocation import INVALID_ARGUMENTS, alternatives_to, progress_of, read_arguments, unknown_tool
from pellucid.run.state import Run
from pellucid.run.tool_results import halted_text
from pellucid.telemetry import Boundary
from pellucid.tools.catalog import Catalog, Denied
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import MetaTool
from pellucid.types import JSONObject, JSONValue

if TYPE_CHECKING:
    from pellucid.offer.policy import Ruling


@dataclass(frozen=True, slots=True)
class Requested:
    """A tool call as the model requested it, before its turn.

    Attributes:
        request: The call.
        binding: The tool that the name resolves to, even if the policy denies it; None if there is none.
        catalog: The catalogue.
        approvals: Settled approvals by ids of calls; None unless the run was resumed.
        slots: Limit of the calls that run at the same time, if the message has several.
        queued: Milliseconds that the call of a serial tool waited for its turn.
    """

    request: ToolCall
    binding: Binding | None
    catalog: Catalog
    approvals: Mapping[str, Settled] | None = None
    slots: CapacityLimiter | None = None
    queued: float | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, resolved before its span starts.

    Attributes:
        request: The call as the model requested it.
        started: Time at which the checks started, by `Scope.now()`; start time of the span.
        binding: The tool that the name resolves to, even if the policy denies it; None if there is none.
        denied: Denial of the tool by the policy; the model reads the text of `PermissionDenied`.
        refusal: Error if the call cannot run: its approval was not given, its tool is unknown, removed, changed or not
            active, or its arguments are not valid.
        arguments: Arguments for the tool, if they are valid.
        approval: Outcome of the approval request, if there was one.
        is_resumed: Whether the run that this one resumes already asked for permission and approval.
        queued: Milliseconds that the call of a serial tool waited for its turn.
        ruling: The policy's ruling on the call, if it was asked.
    """

    request: ToolCall
    started: int
    binding: Binding | None
    denied: Denied | None
    refusal: ToolError | None
    arguments: JSONObject
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
    def tool(self) -> Binding:
        """The tool of a call that was not refused."""
        assert self.binding is not None
        return self.binding

    @property
    def may_run(self) -> bool:
        """Whether nothing speaks against the call before its span starts."""
        return self.refusal is None and self.denied is None

    @property
    def is_tried(self) -> bool:
        """Whether the tool can be called, be it with arguments that do not fit."""
        return self.denied is None and (self.refusal is None or self.refusal.error_type == INVALID_ARGUMENTS)

    @property
    def runs_here(self) -> bool:
        """Whether the call is about to run a tool of the application, in this process."""
        if not self.may_run:
            return False
        tool = self.tool.tool
        return not (tool.execution == "external-dispatch" or isinstance(tool, MetaTool))


def bind(run: Run, item: Requested) -> Call:
    """Read the arguments of a call, and find out whether it may run."""
    started, request, binding = run.scope.now(), item.request, item.binding
    denied = item.catalog.denied.get(request.name)
    arguments: JSONObject = {}
    refusal: ToolError | None = None
    if binding is None:
        refusal = _unknown(run, item.catalog, request.name)
    elif denied is None and (refusal := item.catalog.refuse(request.name)) is None:
        arguments, refusal = read_arguments(binding.tool, request)
    approval = None
    if item.approvals is not None and (approval := item.approvals.get(request.id or "")) is not None:
        refusal = approval_error(approval) or refusal
    is_resumed = item.approvals is not None
    return Call(request, started, binding, denied, refusal, arguments, approval, is_resumed, item.queued)


def approval_error(settled: Settled) -> ToolError | None:
    """Return the error of a call whose approval was not given."""
    return ToolError(settled.error, error_type=f"approval_{settled.outcome}") if settled.error is not None else None


def context_of(run: Run, call: Call, **more: Any) -> ToolContext:
    """Return the context of a tool call."""
    return ToolContext(
        run_id=run.scope.run_id,
        iteration=run.scope.iteration,
        tool_call_id=call.id,
        idempotency_key=str(run.id_of(call.id)),
        identity=run.scope.identity,
        signal=run.caller.signal,
        deadline=run.scope.deadline,
        deps=run.caller.deps,
        **more,
    )


def progress(run: Run, b: Boundary, call: Call) -> Callable[[JSONValue], None]:
    """Return the function with which a tool reports its progress."""
    assert run.token is not None  # the run has started
    return progress_of(run.scope, b.span.get_span_context(), run.token, call.request)


def _unknown(run: Run, catalog: Catalog, name: str) -> ToolError:
    if name in run.offering.names:
        alternatives = alternatives_to(name, catalog)
        return ToolError(f"Tool {name!r} was removed since it was offered. {alternatives}", error_type="tool_removed")
    return unknown_tool(name, catalog)


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
