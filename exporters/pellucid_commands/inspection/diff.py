"""The `diff` subcommand: two runs, and where they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pellucid.cli import Command
from pellucid_commands.inspection.documents import comparison_document
from pellucid_commands.inspection.options import RUN, add_store_options, run_of
from pellucid_commands.inspection.output import flat, say, say_json
from pellucid_commands.inspection.runs import run_table
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.stored import text
from pellucid_exporters.stored.comparison import Comparison, Pair, compare
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.documents import run_document
from pellucid_exporters.stored.rows import RunRow, SpanRow

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_MARKS: Final = {"less": "-", "more": "+", "same": " ", "skip": " "}
MOST_LINES: Final = 40
"""Lines of one difference without `--all`."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid diff`."""
    parser.add_argument("first", metavar="A", help=f"a run: {RUN}")
    parser.add_argument("second", metavar="B", help="another one")
    parser.add_argument("--all", action="store_true", help=f"all lines of a difference, not the first {MOST_LINES}")
    add_store_options(parser)


def run(options: Namespace) -> int:
    """Print where two runs differ, and return the exit code: 1 if they do, as diff(1).

    Raises:
        PellucidError: there is no such run.
        StoreError: there is no store that this version can use.
    """
    reader = StoreReader(options.store)
    runs = [run_of(reader, name) for name in (options.first, options.second)]
    first, second = (RunContent(reader, reader.spans(row.run_id)) for row in runs)
    comparison = compare(first, second)
    different = comparison.differing
    if options.json:
        say_json({"runs": [run_document(row) for row in runs], **comparison_document(comparison)})
        return 1 if different else 0
    say(*run_table(runs), *_heading(comparison, runs), "")
    if not different:
        say(f"No difference in {len(comparison.pairs)} boundaries.")
        return 0
    say(f"First difference, of {len(different)} in {len(comparison.pairs)} boundaries:")
    for pair in different:
        say("", *_pair_lines(pair, most=None if options.all else MOST_LINES))
    return 1


def _heading(comparison: Comparison, runs: Sequence[RunRow]) -> Iterator[str]:
    """Yield one line about who called and when, and one about why the runs stopped, where these differ."""
    apart = runs[1].start - runs[0].start
    facts = [f"{name} {_shown(one)} → {_shown(other)}" for name, (one, other) in comparison.caller.items()]
    if apart:
        facts.append(f"B {text.duration(abs(apart))} {'after' if apart > 0 else 'before'} A")
    if facts:
        yield f"Called: {', '.join(facts)}"
    if comparison.stops is not None:
        yield f"Stopped: {' → '.join(words or 'no result' for words in comparison.stops)}"


def _shown(value: object) -> str:
    return flat(str(value)) if value is not None else text.UNKNOWN


def _pair_lines(pair: Pair, *, most: int | None) -> Iterator[str]:
    iteration = f"[{pair.place}] " if pair.place else ""
    yield f"{iteration}{flat(pair.name)}  {_took(pair.first)} | {_took(pair.second)}"
    if pair.first is None or pair.second is None:
        yield f"  only in {'B' if pair.first is None else 'A'}"
    for difference in pair.differences:
        yield f"  {difference.what}:"
        yield from _lines(difference.lines, most)


def _lines(lines: Sequence[tuple[str, str]], most: int | None) -> Iterator[str]:
    for kind, line in lines[:most]:
        yield f"    {_MARKS[kind]} {line}"
    if most is not None and len(lines) > most:
        yield f"    … {len(lines) - most} more lines; --all shows them"


def _took(span: SpanRow | None) -> str:
    return text.duration(span.end - span.start) if span is not None and span.end is not None else text.UNKNOWN


COMMAND: Final = Command(
    name="diff",
    help="Compare two runs of the local store: where they part, and in what.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid diff 615b43f4 96c287f9",
        "pellucid diff 615b43f4 96c287f9 --all",
    ),
)
