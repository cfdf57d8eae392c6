"""Session of the demo: runs before and after a worse prompt, the alert, the cases, and an experiment with the fix."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from pellucid_commands.demo.page import prepare_output, use_color
from pellucid_commands.demo.scores import report
from pellucid_commands.demo.scores.agent import CATALOGUE, INSTRUCTIONS, make, question, right_price
from pellucid_commands.demo.scores.alarm import Alarm, alarm
from pellucid_commands.demo.store import writable_store
from pellucid_experiments import add_cases, case_of_run, compared, experiment, load_cases
from pellucid_exporters import StoreReader, configure
from pellucid_exporters.local.options import DEFAULT_PATH

if TYPE_CHECKING:
    from argparse import Namespace

    from pellucid import RunResult
    from pellucid_experiments import Report
    from pellucid_exporters import Telemetry

ROUNDS: Final = 4
"""Times that each customer's question is asked of a version."""


def show(options: Namespace) -> int:
    """Run the demo and return the exit code: 1 if the alert does not fire, or the fix is not proven."""
    prepare_output()
    color = use_color(no_color=options.no_color)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pellucid-demo-")))
        kept = writable_store()
        store = kept or folder / Path(DEFAULT_PATH).name
        telemetry = configure("pellucid-demo", local=store, prometheus=0)
        stack.callback(telemetry.shutdown, timeout=1)
        report.introduce(color=color)
        since, reader = time.time_ns(), StoreReader(store)
        with alarm(telemetry, folder) as watching:
            first = _ask("1", telemetry, watching)
            report.scored("1", reader, since, color=color)
            _ask("2", telemetry, watching, before=len(CATALOGUE) * ROUNDS)
            report.scored("2", reader, since, color=color)
            is_raised = report.alerted(watching, reader, since, color=color)
        report.worst(reader, since, color=color)
        cases = folder / "prices.jsonl"
        recorded = [case_of_run(reader, result.run_id, expect_answer=True) for result in first]
        add_cases(cases, [replace(case, id=item) for case, item in zip(recorded, CATALOGUE, strict=True)])
        found = anyio.run(_prove, cases, reader)
        telemetry.flush()
        is_proven = report.proven(found, compared(found), color=color)
        report.end(kept, color=color)
    return 0 if is_raised and is_proven else 1


def _ask(version: str, telemetry: Telemetry, watching: Alarm, before: int = 0) -> list[RunResult[str]]:
    """Ask a version everything, again and again; return the results of the first round.

    Each round waits until Prometheus has the one before: how much a counter grows is seen from its second value on.
    """
    agent = make(version)
    results: list[RunResult[str]] = []
    for _ in range(ROUNDS):
        results += [agent.run_sync(question(item)) for item in CATALOGUE]
        telemetry.flush()
        if watching.is_there:
            watching.has_scraped(before + len(results))
    return results[: len(CATALOGUE)]


async def _prove(cases: Path, reader: StoreReader) -> Report:
    """Ask all versions the recorded questions again: the catalogue answers from the recording."""
    agents = {f"version {version}": make(version) for version in INSTRUCTIONS}
    return await experiment(load_cases(cases), agents, scorers=[right_price], replay=reader, name="prices")
