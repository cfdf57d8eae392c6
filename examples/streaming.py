"""Read a run while it happens: text as it arrives, tools as they start, and the tree of the run below them."""

import anyio

from pellucid import Agent, ToolCall, tool
from pellucid.events import InferenceDelta, ToolStarted
from pellucid.testing import ScriptedModel
from pellucid_exporters import configure


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


agent = Agent("sums", model=ScriptedModel(ToolCall("add", {"a": 2, "b": 3}), "Two and three are five."), tools=[add])


async def main() -> None:
    """Print the model's answer as it arrives."""
    async with agent.stream("What is 2 + 3?") as events:
        async for event in events:
            match event:
                case ToolStarted():
                    print(f"[{event.tool_name}]")
                case InferenceDelta(type="text"):
                    print(event.content, end="", flush=True)
                case _:
                    pass
    print(f"\n{events.result.iterations} iterations")


telemetry = configure("sums", console=True)
anyio.run(main)
telemetry.shutdown()
