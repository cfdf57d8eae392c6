"""Sub-agents: agents as tools, whose runs are nested in a tool call of another run."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any, Final

from pellucid.context import ToolContext
from pellucid.errors import AlreadyResumed, ConfigError, PolicyHalt, ReliabilityFailFast, RunCancelled, ToolError
from pellucid.failures import error_type_of
from pellucid.instants import loop_time
from pellucid.run.loop import execute
from pellucid.run.outcomes import Suspended
from pellucid.run.run_journal import NO_JOURNAL
from pellucid.run.start import ResumeRequest, conversation, create_run
from pellucid.run.state import CallerContext, Configuration, Run, Setup, current_run
from pellucid.run.tool_results import failure_text
from pellucid.tools.tool import AgentTool, Tool
from pellucid.types import JSONObject

_SCHEMA: Final[JSONObject] = {
    "type": "object",
    "properties": {
        "input": {"type": "string", "description": "What to do, with everything that is needed to know for it."}
    },
    "required": ["input"],
    "additionalProperties": False,
}


def agent_tool(
    current: Callable[[], Configuration],
    name: str | None,
    description: str | None,
    timeout: float | None,
    namespace: uuid.UUID | None = None,
) -> Tool:
    """Return a tool that runs an agent, as it is configured at the time of the call, and returns its answer.

    Its telemetry goes to the agent's own pipeline, or else the caller's. A `namespace` replaces that of the nested
    run's own id for the ids of its calls.

    Raises:
        ConfigError: the tool has no description.
    """
    own = current().setup
    agent, description = own.name, description or own.description
    if not description:
        raise ConfigError(
            f"Agent {agent!r}: as_tool() needs a description, by which the model selects the tool; "
            f"pass it to as_tool() or to the agent"
        )

    async def run(arguments: JSONObject, ctx: ToolContext) -> Any:
        outer, configuration = current_run(), current()
        pipeline = configuration.pipeline
        target = outer.scope.pipeline if pipeline is None and outer is not None else pipeline
        caller = CallerContext(
            identity=ctx.identity,
            signal=ctx.signal,
            deps=ctx.deps,
            pipeline=target,
            journal=outer.journal.nested(ctx.idempotency_key) if outer is not None else NO_JOURNAL,
            check_tools=outer.caller.check_tools if outer is not None else None,
            namespace=namespace,
        )
        try:
            return await _nested(configuration.setup, outer, str(arguments["input"]), ctx, caller)
        except (PolicyHalt, ReliabilityFailFast) as error:
            if outer is None:
                raise
            # These end the nested run, not the outer one.
            raise ToolError(failure_text(error), error_type=error_type_of(error)) from error

    return AgentTool(
        name=name or re.sub(r"[^A-Za-z0-9_-]+", "_", agent)[:64],
        description=description,
        input_schema=_SCHEMA,
        run=run,
        timeout=timeout,
        configured=lambda: current().setup,
    )


async def _nested(setup: Setup, outer: Run | None, task: str, ctx: ToolContext, caller: CallerContext) -> Any:
    """Run the agent within the bounds of the outer run, and add its usage to the outer run's usage.

    Raises:
        ToolError: runs are nested more deeply than `Limits.max_depth` of one of them.
        PellucidError: any other error that ends a run.
    """
    resumption = outer.pausing.resumption if outer is not None else None
    paused = resumption.nested.pop(ctx.tool_call_id, None) if resumption is not None else None
    if outer is None or resumption is None or paused is None:
        return await _run(outer, create_run(setup, conversation((), task), caller), ctx)
    checkpoint, decisions, results = paused
    run: Run | None = None
    try:
        run = create_run(setup, ResumeRequest(checkpoint, decisions, results, resumption.claims), caller)
        return await _run(outer, run, ctx)
    except AlreadyResumed:
        outer.pausing.release(checkpoint)  # another process applies the decisions
        raise
    except (PolicyHalt, RunCancelled):
        raise
    except Exception as error:
        if run is not None and (resumed := run.pausing.resumption) is not None and resumed.is_claimed:
            raise
        # Nothing was run and no decision is lost: the outer run pauses again.
        state = resumption.checkpoint.nested[ctx.tool_call_id]
        return Suspended(state, checkpoint.approvals, checkpoint.all_external, error)


async def _run(outer: Run | None, run: Run, ctx: ToolContext) -> Any:
    """Return the answer of a run, or its checkpoint if it paused."""
    if ctx.expires_at is not None:
        own = outer.scope if outer is not None and outer.scope.expires_at == ctx.expires_at else None
        exact = own.deadline if own is not None else None
        run.nesting.deadline = exact if exact is not None else loop_time(ctx.expires_at)
    if outer is None:
        run.nesting.may_wait = False
        return (await execute(run)).output
    run.nesting.enter(outer)
    outer.nesting.inner[run] = outer.pausing.owner(ctx.tool_call_id)
    try:
        result = await execute(run)
    finally:
        outer.nesting.release(run)
    if result.status == "limit_reached" and not result.output:
        raise ToolError(
            f"Agent {run.scope.agent!r} has no answer: its limit {result.stop_reason} is reached.",
            error_type=result.stop_reason,
        )
    if result.checkpoint is None:
        return result.output
    return Suspended(result.checkpoint, result.approvals, result.external)
