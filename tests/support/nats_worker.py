"""A worker on NATS that kills itself."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from pellucid import Agent, Tool, ToolCall
from pellucid.durable import DurableRuns, NATSQueue, open_store
from pellucid.durable.queue.deliveries import NATSDelivery
from pellucid.testing import FunctionModel

if TYPE_CHECKING:
    from pellucid import ToolContext


def agent(log: Path, when: str) -> Agent:
    """Return an agent with a tool that writes a line, and may kill the process."""

    async def note(arguments: Any, ctx: ToolContext) -> str:
        with log.open("a") as file:
            file.write("tool\n")
        if when == "tool":
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    model = FunctionModel(lambda request: "done" if len(request.messages) > 1 else [ToolCall("note", {}, "c")])
    return Agent("killed", model=model, tools=[Tool(name="note", run=note)])


def queue_of(url: str, prefix: str) -> NATSQueue:
    """Return a queue that delivers messages of workers that were killed soon."""
    return NATSQueue(url, prefix=prefix, ack_wait=1.0)


def work(url: str, nats: str, prefix: str, log: str, when: str, backend: str) -> None:
    """Work, until the tool, or the acknowledgement of the message, kills the process."""

    async def run() -> None:
        async with open_store(url) as store, queue_of(nats, prefix) as queue:
            if when == "ack":
                setattr(NATSDelivery, "acknowledge", lambda delivery: os.kill(os.getpid(), signal.SIGKILL))  # noqa: B010
            runs = DurableRuns(store, [agent(Path(log), when)], queue=queue, lease=2.0, poll=600.0)
            await runs.work()

    anyio.run(run, backend=backend)
