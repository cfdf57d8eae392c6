"""Output of `pellucid experiment`, and its exit code."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, Self

from pellucid.cli import FAILED
from pellucid.errors import ConfigError
from pellucid_commands.inspection.output import say, table
from pellucid_commands.store.writing import private
from pellucid_experiments.documents import junit_of, markdown_of
from pellucid_experiments.sections import headline, notes, sections
from pellucid_experiments.statistics import reaches
from pellucid_exporters.stored.text import visible

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pellucid_experiments import Comparison, Report, Trial

NOT_JUDGED: Final = 3
"""Exit code if gates hold, and not all could be judged or compared."""

_EVERY: Final = 30.0
"""Seconds between lines of progress where no terminal is."""


class Progress:
    """Says on standard error how far an experiment is: a line that changes in a terminal, a few lines elsewhere.

    Elsewhere, such as in CI, there is one at the beginning, and one when a further tenth has ended, or 30 seconds have
    passed since the last one.

    Args:
        total: Number of trials that are to be run.
        clock: Seconds.
    """

    def __init__(self, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._clock = clock
        self._seen: Counter[str] = Counter()
        self._is_terminal = sys.stderr.isatty()
        self._tenth, self._at = 0, clock()

    def __enter__(self) -> Self:
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal and self._total:
            print(file=sys.stderr)

    def advance(self, trial: Trial) -> None:
        """Count a trial that has ended."""
        self._seen[trial.status.replace("_", " ")] += 1
        tenth, now = 10 * self._seen.total() // self._total, self._clock()
        if self._is_terminal or tenth > self._tenth or now - self._at >= _EVERY:
            self._tenth, self._at = tenth, now
            self._show()

    def _show(self) -> None:
        if not self._total:
            return
        said = ", ".join(f"{count:,} {status}" for status, count in self._seen.items())
        line = visible(f"{self._seen.total():,} of {self._total:,} runs{f': {said}' if said else ''}")
        if self._is_terminal:
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(f"pellucid: {line}", file=sys.stderr, flush=True)


def show(report: Report, comparisons: Sequence[Comparison]) -> None:
    """Print a report."""
    say(headline(report))
    for section in sections(report, comparisons):
        say("", section.title, *table(section.columns, section.rows, right=section.right, texts=section.texts))
    said = list(notes(report, comparisons))
    if said:
        say("", *said)


def verdict(
    report: Report, comparisons: Sequence[Comparison], gates: Mapping[str, float], *, fail_on_regression: bool
) -> int:
    """Print which gates hold, and return the exit code.

    Raises:
        ConfigError: no scorer gives the score of a gate.
    """
    failed, lacking = False, bool(report.not_judged)
    lines = []
    for name, least in gates.items():
        for candidate in report.candidates:
            floor = report.floor(candidate, name)
            is_reached = reaches(floor, least)
            failed = failed or not is_reached
            lines.append(f"{'ok' if is_reached else 'FAILED':6}  {name} of {candidate}: {floor:.3f}, gate {least:g}")
    if fail_on_regression:
        worse = [each for each in comparisons if each.is_regression]
        unknown = [each for each in comparisons if each.problem]
        failed, lacking = failed or bool(worse), lacking or bool(unknown)
        lines += [f"FAILED  {each.score} of {each.candidate} is worse than that of {each.against}" for each in worse]
        lines += [f"NOT COMPARED  {_sides(each)}: {each.problem}" for each in unknown]
        lines += [] if worse or unknown else ["ok      no regression"]
    if lines:
        say("", *lines)
    if failed:
        return FAILED
    return NOT_JUDGED if lacking else 0


def _sides(each: Comparison) -> str:
    return f"{each.score} of {each.candidate} with that of {each.against}"


def check_folders(options: Namespace) -> None:
    """Check that the folders of the files are there, before anything is asked.

    Raises:
        ConfigError: one is not.
    """
    for name in ("out", "markdown", "junit"):
        path: Path | None = getattr(options, name)
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"--{name} {path}: there is no folder {path.parent}; create it")


def write_files(
    report: Report, comparisons: Sequence[Comparison], gates: Mapping[str, float], options: Namespace
) -> None:
    """Write the files that were asked for, for their owner only: they have answers.

    Raises:
        ConfigError: one cannot be written.
    """
    if options.out is not None:
        document = {**report.to_dict(), "comparisons": [asdict(each) for each in comparisons]}
        _write(options.out, json.dumps(document, indent=2) + "\n")
    if options.markdown is not None:
        _write(options.markdown, markdown_of(report, comparisons))
    if options.junit is not None:
        _write(options.junit, junit_of(report, gates, comparisons if options.fail_on_regression else ()))


def _write(path: Path, text: str) -> None:
    try:
        with private(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written to ({error.strerror})") from error
