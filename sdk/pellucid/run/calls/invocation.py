"""Invocation of a tool: what calls inside and outside of a run have in common."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from inspect import isawaitable
from typing import Any, Final

import anyio
import anyio.to_thread
from anyio.lowlevel import EventLoopToken
from opentelemetry.trace import SpanContext

from pellucid import semconv
from pellucid.concurrency.race import race
from pellucid.concurrency.tasks import call_soon
from pellucid.context import ToolContext
from pellucid.errors import ToolError
from pellucid.events import ToolProgress
from pellucid.failures import contained
from pellucid.messages import ToolCall
from pellucid.telemetry import DISPATCH, Boundary, Scope, boundary
from pellucid.text import close_to
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import Binding
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject, JSONValue

INVALID_ARGUMENTS: Final = "invalid_arguments"

_MAX_NAME: Final = 64
_MAX_ID: Final = 256
_MAX_LISTED: Final = 20


def observed_call(scope: Scope, binding: Binding | None, request: ToolCall, start: int, **notes: Any) -> Boundary:
    """Return the `execute_tool` boundary of a call.

    Args:
        scope: Scope of the call.
        binding: The tool; None if there is none of this name.
        request: The call.
        start: Time at which the checks of the call started.
        notes: Further facts.
    """
    assert request.id is not None
    # A name that the model invented is content.
    name = request.name if binding is not None else scope.label(request.name[:_MAX_NAME]) or semconv.OTHER
    if binding is not None:
        notes |= {"provider_id": binding.provider_id, "dispatch_mode": binding.tool.mode}
        notes |= {"source": binding.source.kind, "source_place": binding.source.place}
        if binding.tool.execution is not None:
            notes["execution"] = binding.tool.execution
    b = boundary(
        scope,
        DISPATCH,
        name,
        start=start,
        agent=scope.agent or None,
        tool_name=name,
        tool_type="function",
        tool_call_id=request.id[:_MAX_ID],
        **notes,
    )
    if binding is None:
        b.label(tool_name=semconv.OTHER)
    elif b.records:
        description = binding.tool.description
        b.note(tool_description=scope.label(description) if description else None)
        b.attributes(binding.tool.attributes)
    return b


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
            problem = f"do not fit its schema: {'; '.join(issues)}. Correct them and retry."
        else:
            return arguments, None
    return {}, ToolError(f"The arguments of {tool.name!r} {problem}", error_type=INVALID_ARGUMENTS)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


async def needs_approval(
    tool: Tool, arguments: JSONObject, context: Callable[[], ToolContext]
) -> tuple[bool, Exception | None]:
    """Return whether a person must approve a call, and the exception if the tool's predicate failed: then yes."""
    if not callable(tool.needs_approval):
        return tool.needs_approval, None
    try:
        answer = tool.needs_approval(arguments, context())
        return bool(await race(_awaited, answer) if isawaitable(answer) else answer), None
    except BaseException as error:  # noqa: BLE001  (the predicate is the application's; the request reports its failure)
        return True, contained(error)


async def _awaited(answer: Awaitable[bool]) -> bool:
    return await answer


def function_of(tool: Tool) -> Callable[[JSONObject, ToolContext], Awaitable[Any]]:
    """Return the function of a tool, to be awaited; a sync one runs in a worker thread."""
    function = tool.run if tool.mode != "thread" else partial(_run_in_thread, tool.run)
    if tool.output_schema is None or tool.on_invalid_output is None:
        return function
    from pellucid.run.output_check import checked

    return checked(tool, function)


async def _run_in_thread(function: Callable[..., Any], arguments: JSONObject, ctx: ToolContext) -> Any:
    # A limiter of its own: an abandoned thread must not block later calls. A run bounds the number of its concurrent
    # calls, `observe` does not. The result is boxed because trio rejects functions that return an awaitable.
    limiter = anyio.CapacityLimiter(1)
    [value] = await anyio.to_thread.run_sync(
        lambda: [function(arguments, ctx)], abandon_on_cancel=True, limiter=limiter
    )
    return await value if isawaitable(value) else value


def out_of_time(tool: Tool, timeout: float | None) -> ToolError:
    """Return the error of a call that did not end within its timeout."""
    return ToolError(f"Tool {tool.name!r} did not finish within {timeout:g} s and was stopped.", error_type="timeout")


def progress_of(
    scope: Scope, span: SpanContext, loop: EventLoopToken, request: ToolCall
) -> Callable[[JSONValue], None]:
    """Return a function that emits progress of a call; it may be called from any thread."""

    def progress(value: JSONValue) -> None:
        if not scope.has_listener(ToolProgress.name):
            return
        try:
            clean = scope.recorder.clean(value)
        except Exception as error:  # noqa: BLE001  (redactors and values are the application's)
            scope.fault("recording", error)
            return
        payload = {"tool_name": request.name, "tool_call_id": request.id, "value": clean}
        call_soon(loop, lambda: scope.emit(ToolProgress, span, payload))

    return progress
