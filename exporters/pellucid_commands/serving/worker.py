"""The `worker` subcommand: continue durable runs until SIGTERM or SIGINT."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Final

import anyio

from pellucid.cli import Command
from pellucid_commands.serving.agents import load_agents
from pellucid_commands.serving.numbers import port_number
from pellucid_commands.serving.options import (
    FLUSH,
    callbacks_of_environment,
    check_store,
    completion_of,
    log_to_stderr,
    opened_store,
    queue_of,
    telemetry_of,
    tokens_of_environment,
)
from pellucid_commands.serving.options import add_arguments as add_shared_arguments
from pellucid_commands.serving.probes import probes_of
from pellucid_commands.serving.run_options import drain_at_signals, runs_of
from pellucid_exporters.options import Prometheus

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Mapping, Sequence

    from pellucid import Agent
    from pellucid_exporters.prometheus.endpoint import MetricsApp


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid worker`."""
    add_shared_arguments(parser)
    parser.add_argument(
        "--metrics-port", type=port_number, metavar="N", help="serve /metrics, /healthz, /readyz there (default: not)"
    )
    parser.add_argument(
        "--metrics-host", default="127.0.0.1", metavar="HOST", help="address of /metrics (default: 127.0.0.1)"
    )


def run(options: Namespace) -> int:
    """Work until SIGTERM or SIGINT, drain, and return the exit code."""
    agents = load_agents(options.agents)
    log_to_stderr()
    check_store(options)
    completion = completion_of(options, tokens_of_environment())
    callbacks = callbacks_of_environment()
    run_options = {"completion": completion, "callbacks": callbacks, "queue": queue_of(options)}
    telemetry = telemetry_of(options, Prometheus(host=options.metrics_host, port=options.metrics_port))
    if telemetry.metrics_app is not None:
        telemetry.metrics_app.probes.update({"/healthz": lambda: None, "/readyz": lambda: "starting"})
    try:
        anyio.run(_work, options, agents, run_options, telemetry.metrics_app)
    finally:
        telemetry.shutdown(FLUSH)
    return 0


async def _work(
    options: Namespace, agents: Sequence[Agent], run_options: Mapping[str, Any], metrics_app: MetricsApp | None
) -> None:
    async with opened_store(options, run_options["queue"]) as store:
        runs = runs_of(options, store, agents, run_options)
        if metrics_app is not None:
            metrics_app.probes.update(probes_of(runs))
        async with anyio.create_task_group() as tasks:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                tasks.start_soon(drain_at_signals, runs, signals, options.drain_timeout)
                print(
                    f"working on {', '.join(runs.agents)} in {options.store.rpartition('@')[2].partition('?')[0]}",
                    flush=True,
                )
                await runs.work(concurrency=options.concurrency, drain_timeout=options.drain_timeout)
                tasks.cancel_scope.cancel()


COMMAND: Final = Command(
    name="worker",
    help="Continue durable runs of agents, until SIGTERM.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid worker app.agents:support --store postgresql://app@localhost/runs",
        "pellucid worker app.agents:support --queue nats://localhost:4222 --metrics-port 9464",
    ),
)
