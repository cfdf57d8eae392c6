"""Check of results against the output schema of their tool; imported for the first tool that has one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from opentelemetry import trace

from pellucid import semconv
from pellucid.context import ToolContext
from pellucid.errors import ToolError
from pellucid.events import ToolOutputInvalid
from pellucid.messages import Parts
from pellucid.run.outcomes import Suspended
from pellucid.run.tool_results import PARTS, in_thread, is_content, is_small, no_json, to_json
from pellucid.telemetry import current_scope
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject


def checked(
    tool: Tool, function: Callable[[JSONObject, ToolContext], Awaitable[Any]]
) -> Callable[[JSONObject, ToolContext], Awaitable[Any]]:
    """Return the function of a tool, whose results are checked against the output schema before they are passed on.

    It raises a `ToolError` about a result that does not fit, or reports it, as `on_invalid_output` says.
    """

    async def run(arguments: JSONObject, ctx: ToolContext) -> Any:
        value = await function(arguments, ctx)
        if isinstance(value, Suspended):  # a paused sub-agent
            return value
        value, issues = _read(tool, value) if is_small(value) else await in_thread(_read, tool, value)
        if issues:
            _handle(tool, ctx, "; ".join(issues))
        return value

    return run


def _read(tool: Tool, value: object) -> tuple[object, Sequence[str]]:
    """Return a result, and what does not fit in its JSON; of content with structured content, that counts.

    Data are returned as JSON, because some, such as generators, can be read only once.

    Raises:
        ToolError: the value cannot be turned into JSON.
    """
    if isinstance(value, Parts):
        return value, tool.output_validator.issues(value.structured)
    if isinstance(value, PARTS) or is_content(value):
        return value, (f"{tool.output_validator.whole}: it is content, not data",)
    try:
        data, _ = to_json(value)
    except (ValueError, RecursionError) as error:
        raise no_json(value) from error
    return data, tool.output_validator.issues(data)


def _handle(tool: Tool, ctx: ToolContext, problem: str) -> None:
    if tool.on_invalid_output == "error":
        raise ToolError(
            f"The result of {tool.name!r} does not fit its output schema, and is withheld: {problem}.",
            error_type="invalid_output",
        )
    scope, span = current_scope(), trace.get_current_span()
    text = scope.text(problem)
    facts = {"tool_name": tool.name, "tool_call_id": ctx.tool_call_id, "problem": text}
    scope.emit(ToolOutputInvalid, span.get_span_context(), facts)
    scope.add_event(span, ToolOutputInvalid.name, {} if text is None else {semconv.TOOL_OUTPUT_PROBLEM: text})
