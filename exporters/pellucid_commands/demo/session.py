"""Session of the demo: run an agent on three hubs until it answers, and show every step."""

from __future__ import annotations

import sys
import threading
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from pellucid import Agent, DiscoveryError
from pellucid.errors import ConfigError, DiscoveryBackoff
from pellucid_commands.demo.catalogue_server import catalogue_server
from pellucid_commands.demo.hubs import catalogue_hub, git_hub, time_hub
from pellucid_commands.demo.model import choose
from pellucid_commands.demo.page import prepare_output, say, use_color
from pellucid_commands.demo.report import Report
from pellucid_commands.demo.script import QUESTION
from pellucid_commands.demo.store import writable_store
from pellucid_exporters import configure
from pellucid_exporters.console import Console
from pellucid_exporters.console.hub_stats import HubStatsProcessor
from pellucid_exporters.local.options import DEFAULT_PATH

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Mapping
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
    """Run the demo and return the exit code."""
    prepare_output()
    model, description = choose(options.model, repository.path)
    color = use_color(no_color=options.no_color)
    store = writable_store()
    if options.view and store is None:
        raise ConfigError(f"--view: {DEFAULT_PATH} cannot be written here; run the demo in a folder of your own")
    telemetry = _configure(options, _console(options, color=color), store)
    hubs = HubStatsProcessor()
    telemetry.tracer_provider.add_span_processor(hubs)
    report = Report(color=color)
    try:
        report.introduce(repository, description)
        while True:
            result, objectives = anyio.run(_converse, repository, model, report)
            report.answered(result)
            report.hubs(hubs.stats(objectives))
            _point_out(report, telemetry, options, result, store)
            if options.repeat is None:
                break
            threading.Event().wait(options.repeat)
    finally:
        telemetry.shutdown(timeout=1)
    return _view(store) if options.view and store is not None else 0


def _view(store: Path) -> int:
    """Serve the page until an interrupt."""
    from pellucid_commands.view.serving import serve

    say()
    return serve(store, host="127.0.0.1", port=None, jaeger=None, browser=False)


def _point_out(report: Report, telemetry: Telemetry, options: Namespace, result: RunResult, store: Path | None) -> None:
    """Print where the telemetry is available, and keep serving it on request."""
    url = telemetry.prometheus_url
    assert url is not None
    report.metrics(url, "catalogue", result.trace_id)
    delivered = options.otlp is not None and telemetry.flush(DELIVERY)
    report.next_steps(result.trace_id, options.otlp, delivered=delivered)
    if store is not None and not options.view:
        report.store(store)
    if options.serve:
        report.serving(url)
        _wait_for_interrupt()


async def _converse(
    repository: Repository, model: Model, report: Report
) -> tuple[RunResult, Mapping[str, float | None]]:
    """Start the hubs, run the agent, stop the hubs; return the result and the hubs' objectives."""
    with catalogue_server() as port:
        async with git_hub(repository) as git, time_hub() as time, aclosing(catalogue_hub(port)) as catalogue:
            agent = Agent(
                "demo",
                model=model,
                instructions=f"Answer only from the results of the tools. The git repository is at {repository.path}.",
                providers=[git, time, catalogue],
            )
            result = await _ask(agent, report)
            return result, {hub.id: hub.objective for hub in (git, time, catalogue)}


async def _ask(agent: Agent, report: Report) -> RunResult:
    """Run the agent until all hubs respond, and follow the remedies in their errors.

    Raises:
        DiscoveryError: a hub still fails in the last of several runs.
    """
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


def _configure(options: Namespace, console: Console, store: Path | None) -> Telemetry:
    """Send telemetry to terminal, store and `/metrics`; use any port if none is given and the default is in use."""
    connect = partial(configure, "pellucid-demo", otlp=options.otlp, console=console, local=store)
    if options.port is not None:
        telemetry = connect(prometheus=options.port)
    else:
        try:
            telemetry = connect(prometheus=PORT)
        except ConfigError:
            telemetry = connect(prometheus=0)
    if telemetry.prometheus_url is None:
        raise ConfigError("OTEL_SDK_DISABLED turns off all that the demo shows; unset it")
    return telemetry


def _console(options: Namespace, *, color: bool) -> Console:
    return Console(
        content=options.content,
        live=False if options.no_color else None,
        color=color,
        width=CONTENT_WIDTH if options.content and not sys.stdout.isatty() else None,
        stream=sys.stdout,  # also into a pipe
    )


def _wait_for_interrupt() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return
