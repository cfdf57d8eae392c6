"""The `cases` subcommand: sets of cases, from recorded runs, tables and by hand."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.cli import FAILED, Command
from pellucid.errors import ConfigError
from pellucid.telemetry.secrets.masking import MASK
from pellucid_commands.durations import duration
from pellucid_commands.inspection.options import RUN
from pellucid_commands.inspection.output import flat, say, table
from pellucid_commands.store.lines import exported
from pellucid_commands.store.writing import write_lines
from pellucid_experiments.case_files import add_cases, load_cases
from pellucid_experiments.recorded_cases import ScoreFilter, case_of_run, cases_of_table, runs_scored
from pellucid_exporters.local.options import DEFAULT_PATH
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.local.snapshot import Snapshot
from pellucid_exporters.recordings import open_recording
from pellucid_exporters.stored.text import visible

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid.scores import Case

_TITLES: Final = ("CASE", "TAGS", "SOURCE", "INPUT", "EXPECTED")
_SHOWN: Final = 12


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the subcommands of `pellucid cases`."""
    actions = parser.add_subparsers(title="actions", metavar="add | import | list | check | export", required=True)
    described = "Add recorded runs to a set; secrets in them stay masked."
    adding = actions.add_parser("add", help=described, description=described)
    adding.add_argument("runs", nargs="*", metavar="RUN", help=RUN)
    adding.add_argument("--to", type=Path, required=True, metavar="SET", help="the set, a file in JSON Lines")
    adding.add_argument("--score", metavar="FILTER", help="the runs with such a score: 'thumb<0.5', 'thumb=down'")
    adding.add_argument(
        "--since", type=duration, default=7 * 86_400.0, metavar="TIME", help="of --score, such as 12h (default: 7d)"
    )
    answers = adding.add_mutually_exclusive_group()
    answers.add_argument("--expected", metavar="TEXT", help="the expected answer")
    answers.add_argument("--expect-answer", action="store_true", help="the recorded answer is the expected one")
    adding.set_defaults(act=_add)
    described = "Add the rows of a table in CSV to a set."
    importing = actions.add_parser("import", help=described, description=described)
    importing.add_argument("table", type=Path, metavar="TABLE", help="comma-separated values, in UTF-8")
    importing.add_argument("--to", type=Path, required=True, metavar="SET", help="the set, a file in JSON Lines")
    importing.add_argument("--input", required=True, metavar="COLUMN", help="column of the questions")
    importing.add_argument("--expected", metavar="COLUMN", help="column of the expected answers")
    importing.add_argument("--id", metavar="COLUMN", help="column of the ids (default: TABLE-1, TABLE-2, …)")
    importing.set_defaults(act=_import)
    described = "List the cases of a set."
    listing = actions.add_parser("list", help=described, description=described)
    listing.set_defaults(act=_list)
    described = "Check a set: its form, and whether the runs that cases were made from can be replayed."
    checking = actions.add_parser("check", help=described, description=described)
    checking.add_argument("--replay", type=Path, metavar="STORE", help="also look for the runs in this store")
    checking.set_defaults(act=_check)
    described = (
        "Write the runs that cases were made from to a file, which --replay reads where the store is not: in CI."
    )
    exporting = actions.add_parser("export", help=described, description=described)
    exporting.add_argument("--output", type=Path, required=True, metavar="FILE", help="JSON Lines, for its owner only")
    exporting.set_defaults(act=_export)
    for action in (adding, exporting):
        action.add_argument(
            "--store", type=Path, default=Path(DEFAULT_PATH), metavar="PATH", help=f"default: {DEFAULT_PATH}"
        )
    for action in (listing, checking, exporting):
        action.add_argument("set", type=Path, metavar="SET", help="a file in JSON Lines")
    for action in (adding, importing, listing):
        action.add_argument("--tag", action="append", default=[], metavar="TAG", help="may be repeated")


def run(options: Namespace) -> int:
    """Do what was asked, and return the exit code.

    Raises:
        CaseError: a set cannot be read or written.
        TapeError: a run cannot be a case.
    """
    return int(options.act(options))


def _add(options: Namespace) -> int:
    if bool(options.runs) == bool(options.score):
        raise ConfigError("name runs, or give --score, such as --score 'thumb<0.5'")
    runs = options.runs or _scored(options)
    if not runs:
        say("no run has such a score")
        return FAILED
    recording = open_recording(options.store)
    cases = [
        case_of_run(recording, name, expected=options.expected, expect_answer=options.expect_answer, tags=options.tag)
        for name in runs
    ]
    if options.score and options.to.exists():
        known = {case.source for case in load_cases(options.to)}
        cases = [case for case in cases if case.source not in known]
    return _added(options.to, cases)


def _scored(options: Namespace) -> list[str]:
    now = time.time_ns()
    since = now - int(options.since * 1e9)
    return runs_scored(StoreReader(options.store), ScoreFilter.of(options.score), since, now)


def _import(options: Namespace) -> int:
    found = cases_of_table(
        options.table,
        input_column=options.input,
        expected_column=options.expected,
        id_column=options.id,
        tags=options.tag,
    )
    return _added(options.to, list(found))


def _added(path: Path, cases: list[Case]) -> int:
    add_cases(path, cases)
    say(f"{path}: {_counted(len(cases))} added, {len(load_cases(path)):,} in all")
    for case in cases:
        if MASK in case.note:
            print(f"pellucid: cases: {visible(case.id)}: {visible(case.note)}", file=sys.stderr)
    return 0


def _counted(number: int) -> str:
    return f"{number:,} case" if number == 1 else f"{number:,} cases"


def _list(options: Namespace) -> int:
    rows = [_cells(case) for case in load_cases(options.set, options.tag)]
    say(*table(_TITLES, rows, names=("CASE",), texts=("INPUT", "EXPECTED"), spare=("SOURCE", "TAGS")))
    return 0


def _cells(case: Case) -> tuple[str, ...]:
    text = case.input if isinstance(case.input, str) else " / ".join(message.text for message in case.input)
    expected = "" if case.expected is None else str(case.expected)
    return case.id, ", ".join(case.tags), case.source[:_SHOWN], flat(text), flat(expected)


def _check(options: Namespace) -> int:
    cases = load_cases(options.set)
    sources = [case for case in cases if case.source]
    say(
        f"{options.set}: {_counted(len(cases))}, {sum(case.expected is not None for case in cases):,} with an expected "
        f"answer, {len(sources):,} made from runs"
    )
    if options.replay is None:
        return 0
    recording, problems = open_recording(options.replay), 0
    for case in sources:
        try:
            case_of_run(recording, case.source)
        except ConfigError as error:
            problems += 1
            say(f"{case.id}: {error}")
    say(f"{len(sources) - problems:,} of {_counted(len(cases))} can be replayed from {options.replay}")
    return FAILED if problems else 0


def _export(options: Namespace) -> int:
    sources = list(dict.fromkeys(case.source for case in load_cases(options.set) if case.source))
    if not sources:
        raise ConfigError(f"{options.set}: no case was made from a run, so that there is nothing to export")
    with Snapshot(options.store) as reader:
        write_lines((line for source in sources for line in exported(reader, source)), options.output)
    say(f"{options.output}: {len(sources):,} {'run' if len(sources) == 1 else 'runs'}")
    return 0


COMMAND: Final = Command(
    name="cases",
    help="Keep sets of cases: questions to ask an agent again, and what is known about their answers.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid cases add 96c287f9 615b43f4 --to cases/refunds.jsonl --expect-answer --tag refunds",
        "pellucid cases add --score 'thumb<0.5' --since 24h --to cases/complaints.jsonl",
        "pellucid cases import questions.csv --input question --expected answer --to cases/questions.jsonl",
        "pellucid cases list cases/refunds.jsonl --tag refunds",
        "pellucid cases check cases/refunds.jsonl --replay .pellucid/telemetry.db",
        "pellucid cases export cases/refunds.jsonl --output cases/refunds.runs.jsonl",
    ),
)
