"""Session of the demo: submit a run, kill its worker, let another one continue, and answer the jobs."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import anyio

from pellucid.durable.records import FINAL
from pellucid.errors import ConfigError, StoreUnavailable
from pellucid.nats import NATSQueue
from pellucid_commands.demo.durable.checks import checks_of
from pellucid_commands.demo.durable.notes import Notebook
from pellucid_commands.demo.durable.options import DELIVERY, ProcessOptions
from pellucid_commands.demo.durable.processes import Processes
from pellucid_commands.demo.durable.report import Report
from pellucid_commands.demo.durable.results import Results, collect
from pellucid_commands.demo.durable.submission import check_installed, start_server, submit
from pellucid_commands.demo.durable.watch import Watch
from pellucid_commands.demo.page import prepare_output, use_color

if TYPE_CHECKING:
    from argparse import Namespace

    from pellucid.durable import RunStore
    from pellucid_exporters import Telemetry

LEASE: Final = 2.0
"""Seconds of the lease of the worker that is killed: how long its run waits for another worker."""

FIRST: Final = "worker 1"


def show(arguments: Namespace) -> int:
    """Run the demo and return the exit code."""
    prepare_output()
    if arguments.serve:
        check_installed()
    if arguments.queue is not None:
        NATSQueue(arguments.queue)  # checks the URL, and that nats-py is installed
    workers = arguments.workers or (1 if arguments.store is None or arguments.store.startswith("sqlite") else 2)
    report = Report(color=use_color(no_color=arguments.no_color))
    with tempfile.TemporaryDirectory(prefix="pellucid-demo-", ignore_cleanup_errors=True) as folder:
        options = ProcessOptions(
            process="demo",
            folder=folder,
            store=arguments.store or f"sqlite:///{folder}/durable.db",
            agent=f"freight-{uuid4().hex[:6]}",
            queue=arguments.queue,
            otlp=arguments.otlp,
            key=token_urlsafe(32) if arguments.serve else None,
        )
        for path in (options.jobs, options.spans):
            path.mkdir()
        telemetry = options.configure_telemetry()
        try:
            results = anyio.run(_run, options, workers, telemetry, report, arguments.store is None)
        finally:
            telemetry.shutdown(DELIVERY)
    report.answer(results.run)
    report.trace(results)
    checks = checks_of(results)
    report.checks(checks)
    report.next_steps(results, arguments.store, arguments.otlp)
    return 0 if all(is_true for _, is_true in checks) else 1


async def _run(
    options: ProcessOptions, workers: int, telemetry: Telemetry, report: Report, is_temporary: bool
) -> Results:
    """Submit the run, run the scenario, and return the results."""
    try:
        async with options.open_store() as store:
            run_id: str | None = None
            try:
                with Processes() as processes:
                    notebook = Notebook(options.notes, options.process)
                    if options.key is not None:
                        options = replace(options, url=await start_server(processes, options, notebook))
                    run_id = await submit(store, options)
                    report.introduce(options, workers, LEASE, is_temporary=is_temporary)
                    watch = Watch(store, run_id, notebook, processes, report.moment)
                    await _run_scenario(watch, options, workers)
            except BaseException:
                if run_id is not None and not is_temporary:
                    await _cancel(store, run_id)
                raise
            is_delivered = telemetry.flush(DELIVERY)
            return await collect(store, run_id, options, is_delivered=is_delivered)
    except StoreUnavailable as error:
        cause = " ".join(str(error.__cause__ or "").split())
        remedy = "check the URL, that the server runs or the folder exists; without --store, no database is needed"
        raise ConfigError(f"{error}{f' ({cause})' if cause else ''}; {remedy}") from error


async def _run_scenario(watch: Watch, options: ProcessOptions, workers: int) -> None:
    """Kill the first worker, let others continue, and let the job process repeat one answer and be late with another.

    Each step waits for a state of the store, or for a note of a process.
    """
    processes, notebook = watch.processes, watch.notebook
    processes.start("worker", options.of(FIRST, lease=LEASE, is_stalled=True))
    processes.start("jobs", options.of("jobs"))
    await watch.until("the model's second request", lambda: watch.count("stall") == 1)
    notebook.write("kill", process=FIRST, exit_code=processes.kill(FIRST))
    for number in range(2, 2 + workers):
        processes.start("worker", options.of(f"worker {number}"))
    processes.send("jobs", "answer quote_road")
    await watch.until("the answer for the road", lambda: watch.count("answer") == 1)
    processes.send("jobs", "answer quote_road")  # as if the first answer had not been acknowledged
    await watch.until("its repetition", lambda: watch.count("answer") == 2)  # noqa: PLR2004
    await watch.until("the end of the first pass", lambda: watch.status == "waiting")
    processes.send("jobs", "abandon quote_rail")
    await watch.until("the expiry of the request for rail", lambda: watch.status_of("quote_rail") == "expired")
    processes.send("jobs", "answer quote_rail")
    await watch.until("the late answer", lambda: watch.count("answer") == 3)  # noqa: PLR2004
    await watch.until("the end of the run", lambda: watch.status in FINAL)


async def _cancel(store: RunStore, run_id: str) -> None:
    """Leave no unfinished run in a database that is kept."""
    with anyio.move_on_after(2 * LEASE, shield=True):
        while (await store.cancel(run_id, "the demo was interrupted")).outcome == "requested":
            await anyio.sleep(LEASE / 10)
            await store.recover()
