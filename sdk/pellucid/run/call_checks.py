"""Checks that a tool call must pass before it runs: is the tool there, do the arguments fit, who has to agree."""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from inspect import isawaitable
from typing import Any

from pellucid.approvals.decisions import ApprovalRequest, Settled
from pellucid.concurrency.race import race
from pellucid.context import ToolContext
from pellucid.errors import PolicyHalt, RunCancelled, ToolError
from pellucid.failures import contained
from pellucid.messages import ToolCall
from pellucid.offer.permission import Permissions
from pellucid.offer.policy import Ruling
from pellucid.run.outcomes import Waiting
from pellucid.run.state import Run
from pellucid.telemetry import Boundary
from pellucid.text import close_to
from pellucid.tools.catalog import Catalog, Denied
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject

_HALTED = "Not run: {}. The run has been ended."


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, with everything that is known of it before its span opens.

    Attributes:
        id: Id of the call; inference gave it one if the model did not.
        request: What the model asked for.
        began: When the checks started, by `Run.now()`; so does the span.
        binding: The tool that the name stands for, also if the policy denies it; None if there is none.
        denied: Why the policy keeps the tool from the model, if it does.
        refusal: Why the tool cannot be called now: unknown, removed, changed or not active.
        arguments: What the tool gets, or why the arguments are not valid; None if no tool gets them.
        ruling: What the policy said of the call, if it was asked.
        approval: What a person decided, if one was asked.
        is_resumed: Whether the policy and the person were asked in the run that this one resumes.
        queued: Milliseconds that the call of a serial tool waited for its turn.
    """

    id: str
    request: ToolCall
    began: int
    binding: Binding | None = None
    denied: Denied | None = None
    refusal: ToolError | None = None
    arguments: JSONObject | ToolError | None = None
    ruling: Ruling | None = None
    approval: Settled | None = None
    is_resumed: bool = False
    queued: float | None = None


def bind(
    run: Run,
    catalog: Catalog,
    call_id: str,
    request: ToolCall,
    approvals: Mapping[str, Settled] | None = None,
    queued: float | None = None,
) -> Call:
    """Find the tool of a call, and read its arguments; `approvals` is given in a run that resumes another."""
    began, name = run.scope.now(), request.name
    denied = catalog.denied.get(name)
    binding = denied.binding if denied is not None else catalog.find(name)
    refusal: ToolError | None = None
    arguments: JSONObject | ToolError | None = None
    if binding is None:
        refusal = _unknown(run, catalog, name)
    elif denied is None:
        refusal = catalog.refuse(name)
        arguments = _read_arguments(binding.tool, request) if refusal is None else None
    approval = approvals.get(call_id) if approvals is not None else None
    return Call(
        call_id,
        request,
        began,
        binding,
        denied,
        refusal,
        arguments,
        approval=approval,
        is_resumed=approvals is not None,
        queued=queued,
    )


def needs_decision(run: Run, call: Call) -> bool:
    """Return whether the policy or the tool itself has to be asked before the call may run."""
    if call.is_resumed or call.binding is None or not isinstance(call.arguments, dict):
        return False
    return run.setup.permissions is not None or bool(call.binding.tool.needs_approval)


async def decide(run: Run, call: Call) -> Call | Waiting:
    """Ask the policy and the tool about a call that `needs_decision`. Return it with the ruling, or that it waits."""
    binding, arguments = call.binding, call.arguments
    assert binding is not None
    assert isinstance(arguments, dict)
    permissions = run.setup.permissions
    ruling = await permissions.rule(run.scope, binding, arguments, call.id) if permissions is not None else None
    call = replace(call, ruling=ruling)
    if ruling is not None and ruling.permission in ("deny", "halt"):
        return call
    needed, fault = await _needs_approval(run, binding.tool, arguments, call)
    if not needed and (ruling is None or ruling.permission == "allow"):
        return call
    now, patience = run.scope.now() / 1e9, run.limits.approval_timeout
    request = ApprovalRequest(
        approval_id=f"approval_{uuid.uuid4().hex}",
        tool_call_id=call.id,
        tool_name=binding.tool.name,
        arguments=arguments,
        expires_at=now + patience if patience is not None else None,
        requested_at=now,
        reason=ruling.reason if ruling is not None and ruling.permission == "ask" else None,
    )
    return Waiting(request, binding.provider_id, fault)


async def _needs_approval(run: Run, tool: Tool, arguments: JSONObject, call: Call) -> tuple[bool, Exception | None]:
    """Ask the tool whether a person has to approve. One that fails has to be approved."""
    if not callable(tool.needs_approval):
        return tool.needs_approval, None
    try:
        answer = tool.needs_approval(arguments, context_of(run, call))
        return bool(await race(_awaited, answer) if isawaitable(answer) else answer), None
    except BaseException as error:  # noqa: BLE001  (the predicate is the application's; the request reports its failure)
        return True, contained(error)


async def _awaited(answer: Awaitable[bool]) -> bool:
    return await answer


def context_of(run: Run, call: Call, **more: Any) -> ToolContext:
    """Return what a tool may know of the run."""
    return ToolContext(
        run_id=run.scope.run_id,
        iteration=run.scope.iteration,
        tool_call_id=call.id,
        identity=run.scope.identity,
        signal=run.signal,
        deadline=run.scope.deadline,
        deps=run.deps,
        **more,
    )


def resolve(run: Run, b: Boundary, call: Call) -> Binding:
    """Return the tool of a call that may be made.

    Raises:
        ToolError: it may not; the text tells the model what to do.
    """
    if (most := run.nesting.count_call()) is not None:
        raise ToolError(
            f"Not run: this run may make {most} tool calls and has made them. Answer with what you have.",
            error_type="max_tool_calls",
        )
    check_halted(run)
    if call.denied is not None and run.setup.permissions is not None:
        b.note(permission="deny")
        raise run.setup.permissions.refuse(run.scope, b.span.get_span_context(), call.denied, call.id)
    if call.refusal is not None:
        raise call.refusal
    assert call.binding is not None  # otherwise it is refused
    return call.binding


def _unknown(run: Run, catalog: Catalog, name: str) -> ToolError:
    alternatives = _alternatives(catalog, name)
    if name in run.offering.names:
        return ToolError(f"Tool {name!r} was removed since it was offered. {alternatives}", error_type="tool_removed")
    return ToolError(f"Unknown tool: {name!r}. {alternatives}", error_type="unknown_tool")


def _alternatives(catalog: Catalog, name: str) -> str:
    names = list(catalog.bindings)
    if question := close_to(name, names):
        return question
    if not names:
        return "No tools are available; answer without them."
    return f"Available tools: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}."  # noqa: PLR2004  (enough to choose from)


def _read_arguments(tool: Tool, request: ToolCall) -> JSONObject | ToolError:
    """Return the arguments as an object that fits the schema, or why they do not.

    Values are not repeated in the error, because they may be secret.
    """
    arguments: object = request.arguments or {}
    problem = ""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            problem = f"are not JSON: {error}. Send one JSON object."
    if not problem:
        if not isinstance(arguments, dict):
            problem = "are not a JSON object. Send one JSON object."
        elif issues := tool.validator.issues(arguments):
            problem = f"do not fit its schema: {'; '.join(issues)}. Correct them and call it again."
        else:
            return arguments
    return ToolError(f"The arguments of {tool.name!r} {problem}", error_type="invalid_arguments")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


async def permit(
    run: Run, b: Boundary, permissions: Permissions, binding: Binding, call: Call, arguments: JSONObject
) -> None:
    """Hold a call to the policy; a halt ends the run once every call has its result."""
    b.note(permission="deny")  # until it has said something else, whatever ends this
    ruling = call.ruling or await permissions.rule(run.scope, binding, arguments, call.id)
    if ruling.permission == "ask" and call.is_resumed:
        b.note(permission="ask")
        return
    try:
        permissions.check(run.scope, b.span.get_span_context(), binding, call.id, ruling)
    except PolicyHalt as halt:
        b.note(permission="halt")
        run.halted = run.halted or halt
        raise
    b.note(permission="allow")


def check_halted(run: Run) -> None:
    """Refuse to start anything in a run that the policy has ended.

    Raises:
        ToolError: it has.
    """
    if run.halted is not None:
        raise ToolError(halted(run.halted), error_type=run.halted.error_type)


def check_running(run: Run) -> None:
    """Start no tool in a run that was halted or stopped, also if the event loop could not cancel it yet.

    Raises:
        ToolError: the policy halted it.
        RunCancelled, TimeoutError: it was stopped.
    """
    check_halted(run)
    if (reason := run.over()) is not None:
        raise TimeoutError("the run's deadline has passed") if reason == "deadline" else RunCancelled(run.scope.agent)


def halted(halt: PolicyHalt) -> str:
    """Return what a call's result says that was not made because the policy ended the run."""
    return _HALTED.format(halt.reason)
