"""Agents as tools: a run nested in a tool call of another run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from pellucid.context import ToolContext
from pellucid.errors import AlreadyResumed, ConfigError, PolicyHalt, ReliabilityFailFast, RunCancelled, ToolError
from pellucid.failures import describe, error_type_of
from pellucid.run.loop import execute
from pellucid.run.outcomes import Suspended
from pellucid.run.start import Resumed
from pellucid.run.state import Run, current_run
from pellucid.telemetry import Pipeline
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject

DEEPEST: Final = 8
"""How many runs may be nested in one: an agent that leads back to itself must not do so for ever."""


_SCHEMA: Final[JSONObject] = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "description": "What to do, with everything that is needed to know for it."}
    },
    "required": ["input"],
    "additionalProperties": False,
}

Begin: TypeAlias = Callable[[str | Resumed, ToolContext, Pipeline | None], Run]
"""Makes a run of an input or a checkpoint, with the identity, cancel token and dependencies of a tool call."""


def agent_tool(agent: str, name: str | None, description: str | None, timeout: float | None, begin: Begin) -> Tool:
    """Return a tool that runs an agent and returns its answer.

    Raises:
        ConfigError: there is no description for the model to decide by.
    """
    if not description:
        raise ConfigError(
            f"Agent {agent!r}: as_tool() needs a description, which the model reads to decide; "
            f"give it there, or to the agent"
        )

    async def run(arguments: JSONObject, ctx: ToolContext) -> Any:
        outer = current_run()
        try:
            return await _nested(agent, outer, str(arguments["input"]), ctx, begin)
        except (PolicyHalt, ReliabilityFailFast) as error:
            if outer is None:
                raise
            # They end the run in which they are raised, and not the one that it is nested in.
            raise ToolError(f"The tool failed. {describe(error)}", error_type=error_type_of(error)) from error

    return Tool(
        name=name or re.sub(r"[^A-Za-z0-9_-]+", "_", agent)[:64],
        description=description,
        input_schema=_SCHEMA,
        run=run,
        timeout=timeout,
    )


async def _nested(agent: str, outer: Run | None, given: str, ctx: ToolContext, begin: Begin) -> Any:
    """Run the agent within the bounds of the run that calls it, and add what it uses to that one's usage.

    Raises:
        ToolError: runs are nested too deep.
        PellucidError: whatever else ends a run.
    """
    resumption = outer.resumption if outer is not None else None
    kept = resumption.nested.pop(ctx.tool_call_id, None) if resumption is not None else None
    if outer is None or resumption is None or kept is None:
        return await _run(agent, outer, begin(given, ctx, outer.scope.pipeline if outer is not None else None), ctx)
    checkpoint, decisions = kept
    run: Run | None = None
    try:
        run = begin(Resumed(checkpoint, decisions, resumption.claims), ctx, outer.scope.pipeline)
        return await _run(agent, outer, run, ctx)
    except AlreadyResumed:
        outer.approvals.release(checkpoint.approvals)  # by whoever has resumed it
        raise
    except (PolicyHalt, RunCancelled):
        raise
    except Exception as error:
        if run is not None and run.resumption is not None and run.resumption.is_taken_up:
            raise
        # Nothing was run, and what was decided is not lost: the run that it is nested in waits again.
        return Suspended(resumption.checkpoint.nested[ctx.tool_call_id], checkpoint.approvals, error)


async def _run(agent: str, outer: Run | None, run: Run, ctx: ToolContext) -> Any:
    """Return the answer of a run, or that it waits."""
    run.nesting.deadline = ctx.deadline if ctx.deadline is not None else math.inf
    if outer is None:
        run.nesting.may_wait = False
        return (await execute(run)).output
    run.nesting.enter(outer)
    if run.nesting.depth > DEEPEST:
        raise ToolError(
            f"Agent {agent!r} was not run: {DEEPEST} runs are nested in each other already. "
            f"Do not ask other agents; answer with what you have.",
            error_type="nested_too_deep",
        )
    outer.nesting.inner[run] = ctx.tool_call_id
    try:
        result = await execute(run)
    finally:
        outer.nesting.release(run)
    if result.checkpoint is None:
        return result.output
    return Suspended(result.checkpoint, result.approvals)
