"""Session of the demo: run an agent on three hubs until it answers, and show every step."""

from __future__ import annotations

import sys
import threading
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from pellucid import Agent, DiscoveryError
from pellucid.errors import ConfigError, DiscoveryBackoff
from pellucid_commands.demo.hubs import OBJECTIVE, catalogue_hub, git_hub, time_hub
from pellucid_commands.demo.model import choose
from pellucid_commands.demo.page import next_steps, prepare_output, say, use_color
from pellucid_commands.demo.report import Report
from pellucid_commands.demo.script import QUESTION
from pellucid_commands.demo.store import writable_store
from pellucid_exporters import configure
from pellucid_exporters.console import Console
from pellucid_exporters.console.hub_stats import HubStatsProcessor
from pellucid_exporters.local.options import DEFAULT_PATH

if TYPE_CHECKING:
    from argparse import Namespace
    from pathlib import Path

    from pellucid import Model, RunResult
    from pellucid_commands.demo.repository import Repository
    from pellucid_exporters import Telemetry

PORT: Final = 9464
MOST_RUNS: Final = 5
CONTENT_WIDTH: Final = 500
"""Columns of output into a pipe or file, where content is not cut."""
DELIVERY: Final = 3.0
"""Timeout in seconds for sending telemetry to a collector."""


def show(options: Namespace, repository: Repository) -> int:
    """Run the demo and return the exit code.

    Raises:
        ConfigError: the demo cannot start; the message names the remedy.
    """
    prepare_output()
    model, description = choose(options.model, repository.path)
    color = use_color(no_color=options.no_color)
    store = writable_store()
    if options.view and store is None:
        raise ConfigError(f"--view: {DEFAULT_PATH} cannot be written here; run the demo in a folder of your own")
    telemetry = _configure(options, store, color=color)
    hubs = HubStatsProcessor()
    telemetry.tracer_provider.add_span_processor(hubs)
    report = Report(color)
    try:
        report.introduce(repository, description)
        while True:
            result = anyio.run(_converse, repository, model, report)
            report.answered(result.output, hubs.stats(dict.fromkeys(("git", "time", "catalogue"), OBJECTIVE)))
            delivered = options.otlp is not None and telemetry.flush(DELIVERY)
            next_steps(
                "pellucid demo",
                result.trace_id,
                options.otlp,
                None if options.view else store,
                ("content", "pellucid demo --content shows the input and output of each span"),
                ("metrics", f"{telemetry.prometheus_url}; pellucid demo --serve keeps it up for your Prometheus"),
                ("your agent", "README.md shows how to get the same from an agent of your own"),
                delivered=delivered,
                color=color,
            )
            if options.repeat is None:
                break
            threading.Event().wait(options.repeat)
        if options.serve:
            say(f"\nServing {telemetry.prometheus_url} until Ctrl-C")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    finally:
        telemetry.shutdown(timeout=1)
    return _view(store) if options.view and store is not None else 0


def _view(store: Path) -> int:
    """Serve the page until an interrupt."""
    from pellucid_commands.view.serving import serve

    say()
    return serve([store], host="127.0.0.1", port=None, jaeger=None, browser=False)


async def _converse(repository: Repository, model: Model, report: Report) -> RunResult:
    """Start the hubs, run the agent until all of them respond, and stop the hubs.

    Raises:
        DiscoveryError: a hub still fails in the last of several runs.
    """
    async with git_hub(repository) as git, time_hub() as time, aclosing(catalogue_hub()) as catalogue:
        agent = Agent(
            "demo",
            model=model,
            instructions=f"Answer only from the results of the tools. The git repository is at {repository.path}.",
            providers=[git, time, catalogue],
        )
        for _ in range(MOST_RUNS - 1):
            report.begin()
            try:
                return await agent.run(QUESTION)
            except DiscoveryBackoff as refusal:
                report.refused(refusal)
                await anyio.sleep(refusal.retry_after)
            except DiscoveryError as failure:
                report.failed(failure)
        report.begin()
        return await agent.run(QUESTION)


def _configure(options: Namespace, store: Path | None, *, color: bool) -> Telemetry:
    """Send telemetry to terminal, store and `/metrics`; use any port if none is given and the default is in use."""
    console = Console(
        content=options.content,
        live=False if options.no_color else None,
        color=color,
        width=CONTENT_WIDTH if options.content and not sys.stdout.isatty() else None,
        stream=sys.stdout,  # also into a pipe
    )
    connect = partial(configure, "pellucid-demo", otlp=options.otlp, console=console, local=store)
    try:
        telemetry = connect(prometheus=PORT if options.port is None else options.port)
    except ConfigError:
        if options.port is not None:
            raise
        telemetry = connect(prometheus=0)
    if telemetry.prometheus_url is None:
        raise ConfigError("OTEL_SDK_DISABLED turns off all that the demo shows; unset it")
    return telemetry
