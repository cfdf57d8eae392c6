"""Versions of an agent, and a process that works with one of them until SIGTERM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from pellucid import Agent, Tool, ToolCall, ToolResult
from pellucid.durable import DurableRuns, open_store
from pellucid.testing import FunctionModel
from support.durable_scene import Journey, work_until_sigterm

if TYPE_CHECKING:
    from pellucid import ToolContext
    from pellucid.durable import OnChange

CALLS = ("first", "pay", "last")
"""Ids of the calls of a run, one after the other; the second needs an approval."""


def deployed(journey: Journey, version: str, lasts: float, worker: str) -> Agent:
    """Return an agent whose tools take some seconds, and note their worker; its instructions are those of a version."""

    async def run(arguments: Any, ctx: ToolContext) -> str:
        assert ctx.identity is not None
        journey.note(f"{ctx.identity.principal} {ctx.tool_call_id} {worker}")
        await anyio.sleep(lasts)
        return f"{ctx.tool_call_id} done"

    def answer(request: Any) -> Any:
        results = [part for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
        if len(results) == len(CALLS):
            return "done"
        call_id = CALLS[len(results)]
        return ToolCall("pay" if call_id == "pay" else "effect", {}, call_id)

    tools = [Tool(name="effect", run=run), Tool(name="pay", run=run, needs_approval=True)]
    instructions = f"Work as version {version}."
    return Agent(
        "deployed", model=FunctionModel(answer), tools=tools, instructions=instructions, telemetry=journey.telemetry()
    )


def work(
    url: str, options: str, path: str, backend: str, worker: str, lasts: str, on_change: OnChange, drain: str
) -> None:
    """Work as a worker whose name begins with the version of its code, with 8 runs at the same time."""

    async def run() -> None:
        async with open_store(url, **json.loads(options)) as store:
            agent = deployed(Journey(Path(path)), worker.partition("-")[0], float(lasts), worker)
            runs = DurableRuns(store, [agent], worker=worker, poll=0.1, on_change=on_change)
            await work_until_sigterm(runs, drain_timeout=float(drain))

    anyio.run(run, backend=backend)
