"""Session of the demo: runs before and after a worse prompt, the alert, the cases, and an experiment with the fix."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

from pellucid_commands.demo.page import prepare_output, use_color
from pellucid_commands.demo.scores import report
from pellucid_commands.demo.scores.agent import CATALOGUE, make, question
from pellucid_commands.demo.scores.alarm import alarm
from pellucid_commands.demo.store import writable_store
from pellucid_experiments import add_cases, case_of_run, compared, experiment
from pellucid_exporters import StoreReader, configure
from pellucid_exporters.local.options import DEFAULT_PATH

if TYPE_CHECKING:
    from argparse import Namespace

    from pellucid import RunResult
    from pellucid.scores import Case

ROUNDS: Final = 3
"""How often each customer's question is asked of a version."""


def show(options: Namespace) -> int:
    """Run the demo and return the exit code: 1 if the scores are not as they should be."""
    prepare_output()
    color = use_color(no_color=options.no_color)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pellucid-demo-")))
        kept = writable_store()
        store = kept or folder / Path(DEFAULT_PATH).name
        telemetry = configure("pellucid-demo", local=store, prometheus=0)
        stack.callback(telemetry.shutdown, timeout=1)
        report.introduce(color=color)
        since = time.time_ns()

        def asked(version: str) -> list[RunResult[str]]:
            results = anyio.run(_ask, version)
            telemetry.flush()
            return results

        with alarm(telemetry, folder) as alarmed:
            before = asked("1")
            report.scored("1", StoreReader(store), since, color=color)
            asked("2")
            report.scored("2", StoreReader(store), since, color=color)
            is_raised = report.alerted(alarmed(), StoreReader(store), since, color=color)
        report.worst(StoreReader(store), since, color=color)
        cases = _cases(StoreReader(store), before, folder / "prices.jsonl")
        found = anyio.run(_prove, cases, StoreReader(store))
        telemetry.flush()
        is_proven = report.proven(found, compared(found), color=color)
        report.end(kept, color=color)
    return 0 if is_raised and is_proven else 1


async def _ask(version: str) -> list[RunResult[str]]:
    """Ask a version of the agent everything, some questions at once; return the results of the first round."""
    agent, results = make(version), list[RunResult[str]]()
    for _ in range(ROUNDS):
        async with anyio.create_task_group() as tasks:

            async def ask(item: str) -> None:
                results.append(await agent.run(question(item)))

            for item in CATALOGUE:
                tasks.start_soon(ask, item)
    return results[: len(CATALOGUE)]


def _cases(reader: StoreReader, results: list[RunResult[str]], path: Path) -> list[Case]:
    """Return a set of cases of the runs that were right, with their answers as expected ones."""
    return add_cases(path, [case_of_run(reader, result.run_id, expect_answer=True) for result in results])


async def _prove(cases: list[Case], reader: StoreReader) -> Report:
    """Ask all versions the recorded questions again: the catalogue answers from the recording."""
    agents = {f"version {version}": make(version) for version in INSTRUCTIONS}
    return await experiment(cases, agents, scorers=[right_price], replay=reader, name="prices")
