"""The `worker` subcommand: continue durable runs until SIGTERM or SIGINT."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

import anyio

from pellucid.cli import Command
from pellucid.durable import open_store
from pellucid.durable_runs import DurableRuns
from pellucid_commands.serving.agents import load_agents
from pellucid_commands.serving.options import (
    FLUSH,
    callbacks_of_environment,
    completion_of,
    opened_queue,
    telemetry_of,
    tokens_of_environment,
)
from pellucid_commands.serving.options import add_arguments as add_shared_arguments

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from pellucid import Agent
    from pellucid.durable_runs import Callbacks, Completion


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid worker`."""
    add_shared_arguments(parser)
    parser.add_argument("--metrics-port", type=int, metavar="N", help="serve /metrics there (default: not at all)")


def run(options: Namespace) -> int:
    """Work until SIGTERM or SIGINT, give unfinished runs back, and return the exit code."""
    agents = load_agents(options.agents)
    completion = completion_of(options, tokens_of_environment())
    callbacks = callbacks_of_environment()
    telemetry = telemetry_of(options, options.metrics_port)
    try:
        anyio.run(_work, options, agents, completion, callbacks)
    finally:
        telemetry.shutdown(FLUSH)
    return 0


async def _work(
    options: Namespace, agents: Sequence[Agent], completion: Completion | None, callbacks: Callbacks | None
) -> None:
    async with open_store(options.store) as store, opened_queue(options) as queue:
        runs = DurableRuns(store, agents, lease=options.lease, completion=completion, callbacks=callbacks, queue=queue)
        async with anyio.create_task_group() as tasks:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                tasks.start_soon(lambda: runs.work(concurrency=options.concurrency))
                print(
                    f"working on {', '.join(runs.agents)} in {options.store.rpartition('@')[2].partition('?')[0]}",
                    flush=True,
                )
                async for _ in signals:
                    break
            tasks.cancel_scope.cancel()


COMMAND: Final = Command(
    name="worker",
    help="Continue durable runs of agents, until SIGTERM.",
    add_arguments=add_arguments,
    run=run,
)
