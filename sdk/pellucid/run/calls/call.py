"""A tool call: its tool, its arguments, and why it may not run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from anyio import CapacityLimiter

from pellucid.errors import ToolError
from pellucid.messages import ToolCall
from pellucid.run.state import Run
from pellucid.text import close_to
from pellucid.tools.catalog import Catalog, Denied
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import MetaTool, Tool
from pellucid.types import JSONObject

if TYPE_CHECKING:
    from pellucid.approvals.settling import Settled
    from pellucid.selection.policy import Ruling

INVALID_ARGUMENTS: Final = "invalid_arguments"

_MAX_LISTED: Final = 20


class Requested(NamedTuple):
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


class Call(NamedTuple):
    """A tool call, resolved before its span starts.

    Attributes:
        id: Id of the call; inference assigns one if the model did not.
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

    id: str
    request: ToolCall
    started: int
    binding: Binding | None
    denied: Denied | None
    refusal: ToolError | None
    arguments: JSONObject
    approval: Settled | None = None
    is_resumed: bool = False
    queued: float | None = None
    ruling: Ruling | None = None

    @property
    def tool(self) -> Binding:
        """The tool of a call that was not refused."""
        assert self.binding is not None
        return self.binding

    @property
    def may_run(self) -> bool:
        """True if the call is neither refused nor denied before its span starts."""
        return self.refusal is None and self.denied is None

    @property
    def is_tried(self) -> bool:
        """True if the tool can be called, even if the arguments do not fit."""
        return self.denied is None and (self.refusal is None or self.refusal.error_type == INVALID_ARGUMENTS)

    @property
    def runs_here(self) -> bool:
        """True if the call is about to run a tool of the application in this process."""
        if not self.may_run:
            return False
        tool = self.tool.tool
        return not (tool.execution == "external-dispatch" or isinstance(tool, MetaTool))


def bind(run: Run, item: Requested) -> Call:
    """Read the arguments of a call, and find out whether it may run."""
    started, request, binding = run.scope.now(), item.request, item.binding
    denied, refuse = item.catalog.denied.get(request.name), item.catalog.refuse
    arguments: JSONObject = {}
    refusal: ToolError | None = None
    if binding is None:
        refusal = _unknown(run, item.catalog, request.name)
    elif denied is None and (refuse is None or (refusal := refuse(request.name)) is None):
        arguments, refusal = read_arguments(binding.tool, request)
    call = Call(request.id or "", request, started, binding, denied, refusal, arguments, queued=item.queued)
    return call if item.approvals is None else _resumed(call, item.approvals.get(call.id))


def _resumed(call: Call, approval: Settled | None) -> Call:
    """Return a call of a resumed run, with the outcome of its approval request."""
    refusal = approval_error(approval) if approval is not None else None
    return call._replace(refusal=refusal or call.refusal, approval=approval, is_resumed=True)


def approval_error(settled: Settled) -> ToolError | None:
    """Return the error of a call whose approval was not given."""
    return ToolError(settled.error, error_type=f"approval_{settled.outcome}") if settled.error is not None else None


def _unknown(run: Run, catalog: Catalog, name: str) -> ToolError:
    if name in run.selection.names:
        alternatives = alternatives_to(name, catalog)
        return ToolError(f"Tool {name!r} was removed since it was offered. {alternatives}", error_type="tool_removed")
    return unknown_tool(name, catalog)


def unknown_tool(name: str, catalog: Catalog) -> ToolError:
    """Return the error of a call of a tool that is not in the catalogue."""
    return ToolError(f"Unknown tool: {name!r}. {alternatives_to(name, catalog)}", error_type="unknown_tool")


def alternatives_to(name: str, catalog: Catalog) -> str:
    """Return a sentence about the tools that can be called in place of one that cannot."""
    names = list(catalog.bindings)
    if not names:
        return "No tools are available; answer without them."
    more = ", ..." if len(names) > _MAX_LISTED else ""
    return close_to(name, names) or f"Available tools: {', '.join(names[:_MAX_LISTED])}{more}."


def read_arguments(tool: Tool, request: ToolCall) -> tuple[JSONObject, ToolError | None]:
    """Return the arguments as an object that fits the schema, or an empty one and an error.

    The error does not repeat values, because they may be secret.
    """
    arguments: object = request.arguments or {}
    try:
        if isinstance(arguments, str):
            arguments = json.loads(arguments, parse_constant=_no_constant)
        if not isinstance(arguments, dict):
            problem = "are not a JSON object. Send one JSON object."
        elif tool.validator.accepts(arguments) or not (issues := tool.validator.issues(arguments)):
            return arguments, None
        else:
            problem = f"do not fit its schema: {'; '.join(issues)}. Correct them and retry."
    except (TypeError, ValueError, RecursionError) as error:  # also of values that JSON does not have
        problem = f"are not JSON: {error}. Send one JSON object."
    return {}, ToolError(f"The arguments of {tool.name!r} {problem}", error_type=INVALID_ARGUMENTS)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
