"""Output of the demo: scores by version, the alert, the worst answers, and what the experiment proves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from pellucid_commands.demo.page import cut, row, say, title
from pellucid_commands.demo.scores.agent import INSTRUCTIONS, NAME, SCORE
from pellucid_commands.demo.scores.alarm import ALERT, PATIENCE
from pellucid_commands.demo.store import view_command
from pellucid_commands.inspection.output import table
from pellucid_experiments.sections import headline, notes, sections
from pellucid_exporters.stored.scores import ScoreCondition

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pellucid_commands.demo.scores.alarm import Alarm
    from pellucid_experiments import Comparison, Report
    from pellucid_exporters import StoreReader
    from pellucid_exporters.stored.rows import RunRow

SHOWN: Final = 4
"""Wrong answers that are shown."""


def introduce(*, color: bool) -> None:
    """Print the introduction."""
    title("Pellucid demo: is the agent any good?", color=color)
    row("agent", f"{NAME}: tells prices of a catalogue, some of which it remembers wrongly")
    row("model", "a script that does what its instructions say: no key, no network")
    row("scores", f"{SCORE} and tool_called, of each run, in the background: Agent(scorers=[...])")
    say()


def scored(version: str, reader: StoreReader, since: int, *, color: bool) -> None:
    """Print the scores of a version."""
    title(f"Version {version}: {INSTRUCTIONS[version]}", color=color)
    for group in reader.score_groups("version", since, time.time_ns()):
        if group.name.endswith(version):
            row("mean", f"{group.total / group.number:.2f} of {group.score}, {group.number} runs")
    say()


def alerted(watching: Alarm, reader: StoreReader, since: int, *, color: bool) -> bool:
    """Print the alert, with the trace of a bad run; return whether it fires, or cannot be known here."""
    title("The alert, by Prometheus and the rules of `pellucid rules export`", color=color)
    if not watching.is_there:
        row("not evaluated", "Prometheus is not installed here; with apt install prometheus, this demo runs it")
        say()
        return True
    found = watching.fired()
    if found is None:
        row("NOT FIRING", f"{ALERT} did not fire in {PATIENCE:g} s")
    else:
        row(ALERT, found["annotations"]["summary"])
        row("windows", "an hour is 6 s here")
        row("a bad run", f"trace {_low(reader, since)[0].trace_id}")
    say()
    return found is not None


def _low(reader: StoreReader, since: int) -> list[RunRow]:
    """Return runs with a low score, one for each question."""
    runs = reader.runs(agent=NAME, score=ScoreCondition.of(f"{SCORE}<1"))
    return list({run.question: run for run in runs if run.start >= since}.values())


def worst(reader: StoreReader, since: int, *, color: bool) -> None:
    """Print the answers with the lowest scores."""
    title(f"Which answers: pellucid runs --score '{SCORE}<1'", color=color)
    low = _low(reader, since)
    for run in low[:SHOWN]:
        why = next(each.explanation for each in reader.scores(run.run_id) if each.name == SCORE)
        row(run.run_id[:12], f"{run.question} {run.answer} ({why})")
    row("", f"{len(low)} questions in all")
    say()


def proven(report: Report, comparisons: Sequence[Comparison], *, color: bool) -> bool:
    """Print what the experiment found; return whether the fix is as good as the first version."""
    title("An experiment: the recorded questions again, the catalogue from the recording", color=color)
    say(f"  {headline(report)}")
    for section in sections(report, comparisons):
        say()
        for line in table(section.columns, section.rows, right=section.right, texts=section.texts):
            say(cut(f"  {line}"))
    for note in notes(report, comparisons):
        say(f"  {note}")
    say()
    means = {each.candidate: each.floor for each in report.summaries if each.score == SCORE}
    is_proven = means["version 3"] == means["version 1"] > means["version 2"]
    row("fix", f"version 3 has {means['version 3']:.2f}, as version 1: proven" if is_proven else "NOT PROVEN")
    say()
    return is_proven


def end(store: Path | None, *, color: bool) -> None:
    """Print where to go from here."""
    title("Next", color=color)
    row("your agent", "docs/experiments.md: from nothing to a gate in CI in ten minutes")
    if store is not None:
        row("page", view_command(store))
