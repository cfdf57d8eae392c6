"""A run whose worker ends before the result is there: a carrier settles the call, and another worker continues."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import anyio

from pellucid import Agent, ModelRequest, ToolCall, ToolContext, ToolResult, tool
from pellucid.durable import DurableRuns, open_store
from pellucid.testing import FunctionModel


@tool(execution="external-dispatch", expires_in=3600)
async def quote(ctx: ToolContext, city: str) -> None:
    """Request a quote for a transport. The carrier would get the result id here, and `ctx.external.headers`."""


def answer(request: ModelRequest) -> ToolCall | str:
    """Answer as a model would."""
    results = [part for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
    if not results:
        return ToolCall("quote", {"city": "Turin"})
    if len(results) == 1:
        return "I am waiting for the quote."
    return f"The quote is {results[-1].response['result']['price']} EUR."


AGENT = Agent("freight", model=FunctionModel(answer), tools=[quote])


async def work(url: str) -> None:
    """Worker: continue the runs that are due. A server would call `work()`, which waits for more."""
    async with open_store(url) as store:
        passes = await DurableRuns(store, [AGENT]).work_until_idle()
        print(f"worker: {passes} pass")


async def carry(url: str, result_id: str) -> None:
    """Carrier: settle a call. It needs no agent."""
    async with open_store(url) as store:
        settlement = await DurableRuns(store, []).settle(result_id, output={"price": 1860})
        print(f"carrier: {settlement.outcome}")


async def main() -> None:
    """Submit a run, and show what it waits for and how it ends. Each worker is a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder, 'durable.db')}"
        async with open_store(url) as store:
            runs = DurableRuns(store, [AGENT])
            run_id = await runs.submit(AGENT, "What does a transport to Turin cost?", idempotency_key="order-7")
            await start("work", url)
            state = await runs.status(run_id)
            print(f"run: {state.status} for {[call.tool for call in state.external]}")
            await start("carry", url, state.external[0].id)
            await start("work", url)
            state = await runs.status(run_id)
            print(f"run: {state.status}: {state.output}")
            print(f"events: {[event.type async for event in runs.events(run_id)]}")


async def start(*arguments: str) -> None:
    """Run this file as another process."""
    process = await anyio.run_process([sys.executable, __file__, *arguments], stderr=None)
    print(process.stdout.decode().strip())


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["work", store_url]:
            anyio.run(work, store_url)
        case ["carry", store_url, result]:
            anyio.run(carry, store_url, result)
        case _:
            anyio.run(main)
