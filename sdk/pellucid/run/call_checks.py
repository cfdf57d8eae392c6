"""Whether a call that a model asked for may be made: is the tool there, do the arguments fit, who has to agree."""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final

from pellucid.approvals.decisions import ApprovalRequest, Settled
from pellucid.concurrency.race import race
from pellucid.context import ToolContext
from pellucid.errors import PolicyHalt, RunCancelled, ToolError
from pellucid.failures import contained
from pellucid.messages import ToolCall, id_of
from pellucid.offer.permission import Permissions
from pellucid.offer.policy import Ruling
from pellucid.run.state import Run, Waiting
from pellucid.telemetry import Boundary
from pellucid.text import close_to
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject

_HALTED = "Not run: {}. The run has been ended."


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What is known of a call before it is made.

    Attributes:
        began: When that was begun to be found out, by `Run.now()`, if it took any time.
        arguments: What the tool gets, if they were read and are valid.
        ruling: What the policy said of it, if there is one and it was asked.
        settled: What a person decided, if one was asked.
        is_resumed: Whether it was admitted before, in the run that this one goes on from.
    """

    began: int | None = None
    arguments: JSONObject | None = None
    ruling: Ruling | None = None
    settled: Settled | None = None
    is_resumed: bool = False


UNASKED: Final = Admission()
"""Of a call that nobody has to be asked about."""


def asks(run: Run, binding: Binding | None) -> bool:
    """Return whether anybody has to be asked about a call of a tool: the policy, or a person."""
    return run.setup.permissions is not None or (binding is not None and bool(binding.tool.needs_approval))


async def admit(run: Run, catalog: Catalog, call: ToolCall) -> Admission | Waiting:
    """Find out whether a call has to wait for a person. Whatever else keeps it from being made is for its own span."""
    began, permissions = run.now(), run.setup.permissions
    binding = catalog.find(call.name)
    if binding is None or catalog.refusal(call.name) is not None:
        return Admission(began=began)
    try:
        arguments = arguments_of(binding.tool, call)
    except ToolError:
        return Admission(began=began)
    ruling = await permissions.rule(run, binding, arguments, id_of(call)) if permissions is not None else None
    if ruling is not None and ruling.permission in ("deny", "halt"):
        return Admission(began=began, arguments=arguments, ruling=ruling)
    needed, fault = await _needed(run, binding.tool, arguments, call)
    if not needed and (ruling is None or ruling.permission == "allow"):
        return Admission(began=began, arguments=arguments, ruling=ruling)
    now, patience = run.now() / 1e9, run.limits.approval_timeout
    request = ApprovalRequest(
        approval_id=f"approval_{uuid.uuid4().hex}",
        tool_call_id=id_of(call),
        tool_name=binding.tool.name,
        arguments=arguments,
        expires_at=now + patience if patience is not None else None,
        requested_at=now,
        reason=ruling.reason if ruling is not None and ruling.permission == "ask" else None,
    )
    return Waiting(request, binding.provider_id, fault)


async def _needed(run: Run, tool: Tool, arguments: JSONObject, call: ToolCall) -> tuple[bool, Exception | None]:
    """Ask the tool whether a person has to approve. One that fails has to be approved."""
    if not callable(tool.needs_approval):
        return tool.needs_approval, None
    try:
        answer = tool.needs_approval(arguments, context_of(run, call))
        return bool(await race(_awaited, answer) if isawaitable(answer) else answer), None
    except BaseException as error:  # noqa: BLE001  (the predicate is the application's; its failure is told with the request)
        return True, contained(error)


async def _awaited(answer: Awaitable[bool]) -> bool:
    return await answer


def context_of(run: Run, call: ToolCall, **more: Any) -> ToolContext:
    """Return what a tool may know of the run."""
    return ToolContext(
        run_id=run.run_id,
        iteration=run.iteration,
        tool_call_id=id_of(call),
        identity=run.identity,
        signal=run.signal,
        deadline=run.deadline,
        deps=run.deps,
        **more,
    )


def listed(catalog: Catalog, call: ToolCall) -> Binding | None:
    """Return what a call means, also if the policy keeps it from the model."""
    if (denied := catalog.denied.get(call.name)) is not None:
        return denied.binding
    return catalog.find(call.name)


def resolve(run: Run, b: Boundary, catalog: Catalog, call: ToolCall) -> Binding:
    """Find the tool and check that the call may be made.

    Raises:
        ToolError: it may not; the text tells the model what to do.
    """
    if (most := run.count_call()) is not None:
        raise ToolError(
            f"Not run: this run may make {most} tool calls and has made them. Answer with what you have.",
            error_type="max_tool_calls",
        )
    check_halted(run)
    if (denied := catalog.denied.get(call.name)) is not None and run.setup.permissions is not None:
        b.note(permission="deny")
        raise run.setup.permissions.refuse(run, b.span.get_span_context(), denied, id_of(call))
    if (binding := catalog.find(call.name)) is not None:
        if (refusal := catalog.refusal(call.name)) is not None:
            raise refusal
        return binding
    if call.name in run.offered:
        raise ToolError(
            f"Tool {call.name!r} was removed since it was offered. {_alternatives(catalog, call.name)}",
            error_type="tool_removed",
        )
    raise ToolError(f"Unknown tool: {call.name!r}. {_alternatives(catalog, call.name)}", error_type="unknown_tool")


def _alternatives(catalog: Catalog, name: str) -> str:
    names = list(catalog.bindings)
    if question := close_to(name, names):
        return question
    if not names:
        return "No tools are available; answer without them."
    return f"Available tools: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}."  # noqa: PLR2004  (enough to choose from)


def arguments_of(tool: Tool, call: ToolCall) -> JSONObject:
    """Return the arguments as an object that fits the schema.

    Raises:
        ToolError: they do not; values are not repeated, because they may be secret.
    """
    arguments: object = call.arguments or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ToolError(
                f"The arguments of {tool.name!r} are not JSON: {error}. Send one JSON object.",
                error_type="invalid_arguments",
            ) from None
    if not isinstance(arguments, dict):
        raise ToolError(
            f"The arguments of {tool.name!r} are not a JSON object. Send one JSON object.",
            error_type="invalid_arguments",
        )
    if issues := tool.validator.issues(arguments):
        raise ToolError(
            f"The arguments of {tool.name!r} do not fit its schema: {'; '.join(issues)}. "
            f"Correct them and call it again.",
            error_type="invalid_arguments",
        )
    return arguments


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


async def permit(
    run: Run,
    b: Boundary,
    permissions: Permissions,
    found: Binding,
    call: ToolCall,
    arguments: JSONObject,
    known: Admission,
) -> None:
    """Hold a call to the policy; a halt ends the run once every call has its result."""
    b.note(permission="deny")  # until it has said something else, whatever ends this
    ruling = known.ruling or await permissions.rule(run, found, arguments, id_of(call))
    if ruling.permission == "ask" and known.is_resumed:
        b.note(permission="ask")
        return
    try:
        permissions.check(run, b.span.get_span_context(), found, id_of(call), ruling)
    except PolicyHalt as halt:
        b.note(permission="halt")
        run.halted = run.halted or halt
        raise
    b.note(permission="allow")


def check_halted(run: Run) -> None:
    """Refuse to begin anything in a run that the policy has ended.

    Raises:
        ToolError: it has.
    """
    if run.halted is not None:
        raise ToolError(halted(run.halted), error_type=run.halted.error_type)


def check_stopped(run: Run) -> None:
    """Start no tool in a run that was stopped, also if the event loop could not cancel it yet.

    Raises:
        RunCancelled, TimeoutError: it was.
    """
    if (reason := run.over()) is not None:
        raise TimeoutError("the run's deadline has passed") if reason == "deadline" else RunCancelled(run.agent)


def halted(halt: PolicyHalt) -> str:
    """Return what a call's result says that was not made because the policy ended the run."""
    return _HALTED.format(halt.reason)
