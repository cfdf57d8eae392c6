"""Worker process of the demo: continues runs until its standard input is closed, or it is killed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from pellucid.durable_runs import DurableRuns
from pellucid_commands.demo.durable.agent import freight_agent
from pellucid_commands.demo.durable.notes import Notebook
from pellucid_commands.demo.durable.options import DELIVERY, ProcessOptions, run_process

if TYPE_CHECKING:
    from pellucid_exporters import Telemetry


async def work(options: ProcessOptions, telemetry: Telemetry) -> None:
    """Work until standard input is closed."""

    async def stall() -> None:
        # What was recorded up to here has left the process by now, as it would during a slow answer.
        await anyio.to_thread.run_sync(telemetry.flush, DELIVERY)
        notebook.write("stall")
        await anyio.sleep_forever()

    notebook = Notebook(options.notes, options.process)
    agent = freight_agent(options.agent, notebook, options.jobs, stall if options.is_stalled else None)
    async with options.open_store() as store, options.opened_queue() as queue:
        runs = DurableRuns(
            store,
            [agent],
            lease=options.lease,
            worker=options.process,
            poll=0.1,
            completion=options.completion,
            queue=queue,
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runs.work)
            await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    run_process(work)
