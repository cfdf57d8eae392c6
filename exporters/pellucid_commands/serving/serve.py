"""The `serve` subcommand: durable runs over HTTP, with a worker in the same process; or runs without a store."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

import anyio

from pellucid.cli import Command
from pellucid.concurrency.tasks import nothing
from pellucid.errors import ConfigError
from pellucid_commands.serving.access import access_options
from pellucid_commands.serving.access import add_arguments as add_access_arguments
from pellucid_commands.serving.agents import load_agents
from pellucid_commands.serving.numbers import port_number, positive
from pellucid_commands.serving.options import (
    FLUSH,
    authentication,
    callbacks_of_environment,
    cannot_listen,
    check_store,
    completion_of,
    log_to_stderr,
    opened_store,
    queue_of,
    telemetry_of,
    tokens_of_environment,
)
from pellucid_commands.serving.options import add_arguments as add_shared_arguments
from pellucid_commands.serving.run_options import runs_of
from pellucid_exporters.options import Prometheus

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.applications import Starlette

    from pellucid import Agent

NEEDED: Final = ("starlette", "uvicorn")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid serve`."""
    add_shared_arguments(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=port_number, default=8000, metavar="N", help="port (default: 8000)")
    parser.add_argument(
        "--max-connections",
        type=positive,
        default=2000,
        metavar="N",
        help="further ones are answered with 503 (default: 2000)",
    )
    parser.add_argument(
        "--no-store",
        action="store_true",
        help="runs end with their requests, and cannot wait",
    )
    parser.add_argument(
        "--conversations",
        choices=("refuse", "queue"),
        help="what to do with a run while another one of its conversation has not ended (default: refuse)",
    )
    add_access_arguments(parser)
    parser.add_argument("--no-worker", action="store_true", help="only serve; `pellucid worker` continues the runs")


def run(options: Namespace) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    Raises:
        ConfigError: the server cannot start; the message names the remedy.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} not installed; run: pip install 'pellucid[server]'")
    if options.no_store and (options.no_worker or options.public_url or options.conversations):
        raise ConfigError(
            "--no-store: without a store there are no workers and conversations; omit --no-worker, --public-url and "
            "--conversations"
        )
    agents = load_agents(options.agents)
    log_to_stderr()
    authenticate = authentication(options.host)
    tokens = tokens_of_environment()
    run_options = {
        "completion": completion_of(options, tokens),
        "callbacks": callbacks_of_environment(),
        "conversations": options.conversations or "refuse",
    }
    if not options.no_store:
        check_store(options)
    queue = queue_of(options)
    telemetry = telemetry_of(options, Prometheus(port=None))
    metrics = telemetry.metrics_app.asgi if telemetry.metrics_app is not None else None
    app_options = {"authenticate": authenticate, "metrics": metrics, **access_options(options)}
    try:
        if options.no_store:
            anyio.run(_serve_without_store, options, agents, app_options)
        else:
            anyio.run(_serve, options, agents, {**run_options, "queue": queue}, {**app_options, "tokens": tokens})
    finally:
        telemetry.shutdown(FLUSH)
    return 0


async def _serve_without_store(options: Namespace, agents: Sequence[Agent], app_options: Mapping[str, Any]) -> None:
    from pellucid.server import create_agent_app

    if not await _listen(options, create_agent_app(agents, **app_options)):
        raise cannot_listen(options)


async def _serve(
    options: Namespace, agents: Sequence[Agent], run_options: Mapping[str, Any], app_options: Mapping[str, Any]
) -> None:
    from pellucid.server import create_app

    async with opened_store(options, run_options["queue"]) as store:
        runs = runs_of(options, store, agents, run_options)
        app = create_app(runs, **app_options)
        is_over = anyio.Event()
        timeouts = chain([options.drain_timeout], repeat(0.0))  # of signals

        async def work() -> None:
            if not options.no_worker:
                await runs.work(concurrency=options.concurrency, drain_timeout=options.drain_timeout)
            is_over.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            has_listened = await _listen(options, app, lambda: runs.drain(next(timeouts)), is_over.wait)
            tasks.cancel_scope.cancel()
        if not has_listened:
            raise cannot_listen(options)


async def _listen(
    options: Namespace,
    app: Starlette,
    drain: Callable[[], None] = nothing,
    at_end: Callable[[], Awaitable[object]] | None = None,
) -> bool:
    """Serve until a signal; then drain the worker, end streams, and finish open requests.

    Return False if the server could not listen.
    """
    from pellucid_commands.serving.http_server import listen

    def stop() -> None:
        drain()
        app.state.drain()

    return await listen(app, options.host, options.port, stop, at_end, limit_concurrency=options.max_connections)


COMMAND: Final = Command(
    name="serve",
    help="Serve runs of agents over HTTP, durable ones unless without a store.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid serve app.agents:support",
        "pellucid serve app.agents:support --store postgresql://app@localhost/runs --port 8080",
        "pellucid serve app.agents:support --no-store",
    ),
)
