"""A report is written by another process: the run pauses, a service answers, and the run goes on in the same trace."""

from __future__ import annotations

import json
import queue
import sys

from pellucid import Agent, ExternalResult, ToolCall, ToolContext, tool
from pellucid.configured import configured_tools
from pellucid.testing import OutsideService, ScriptedModel, Step
from pellucid_exporters import configure
from pellucid_exporters.console import Console


@tool(execution="same-invocation")
async def summarize(ctx: ToolContext, text: str) -> str:
    """Summarize a text, while the model continues."""
    ctx.progress("reading")
    return f"In short: {text[:10]}..."


def main() -> None:
    """Dispatch a job and a call in the background, and resume with the result of the job."""
    completed: queue.Queue[tuple[str, object]] = queue.Queue()
    steps: list[Step] = [
        [
            ToolCall("test_external_async", {"message": "sales are up"}),
            ToolCall("summarize", {"text": "a long report about sales"}),
        ],
        "The summary is there; the figures are missing.",
        "Sales are up.",
    ]
    with OutsideService(on_done=lambda result_id, output: completed.put((result_id, output))) as service:
        figures = configured_tools(
            {"test_external_async": {"serviceUrl": service.url, "delay": 0.2, "expiresIn": 60.0}}
        )
        agent = Agent("analyst", model=ScriptedModel(*steps), tools=[summarize], providers=[figures])
        paused = agent.run_sync("How are sales?")
        print(f"{paused.status}: {[request.tool_name for request in paused.external]}")
        stored = json.dumps(paused.checkpoint)  # in a database, for any process
        result_id, output = completed.get(timeout=60)
    result = agent.resume_sync(json.loads(stored), results=[ExternalResult(result_id=result_id, output=output)])
    print(f"{result.status}: {result.output}")


if __name__ == "__main__":
    telemetry = configure("external-tools", console=Console(stream=sys.stdout))
    main()
    telemetry.shutdown()
