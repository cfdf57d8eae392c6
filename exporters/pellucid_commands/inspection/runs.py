"""The `runs` subcommand: a table of runs."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid.semconv import FAILED, TIMEOUT
from pellucid_commands.inspection.options import add_kind, add_store_options, amount, kind_of, positive
from pellucid_commands.inspection.output import say, say_json, table
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.stored import text
from pellucid_exporters.stored.documents import run_document
from pellucid_exporters.stored.durations import took
from pellucid_exporters.stored.rows import AGENT, KINDS, STATUSES, STOP_REASONS
from pellucid_exporters.stored.scores import ScoreCondition

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid_exporters.stored.rows import RunRow, Total
    from pellucid_exporters.stored.scores import ScoreRow

SHOWN: Final = 12
"""Characters of an id in a table, which are enough to name the run."""

_TITLES: Final = (
    "RUN",
    "STARTED",
    "AGENT",
    "STATUS",
    "DURATION",
    "SPANS",
    "TOKENS",
    "COST",
    "SCORES",
    "QUESTION",
    "ANSWER",
)
_SPARE: Final = ("SPANS", "TOKENS", "COST", "STARTED")
_RIGHT: Final = ("DURATION", "SPANS", "TOKENS", "COST")
_FILTERS: Final = (
    *("agent", "outcome", "stop_reason", "hub", "tool", "model", "tag", "text"),
    *("min_duration", "min_cost", "score", "conversation", "before", "limit"),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid runs`."""
    parser.add_argument("--agent", metavar="NAME", help="of this agent")
    parser.add_argument("--outcome", choices=STATUSES, help="that ended so, or have not ended")
    parser.add_argument("--stop-reason", choices=STOP_REASONS, help="that returned a result for this reason")
    parser.add_argument("--hub", metavar="ID", help="that asked this hub for tools")
    parser.add_argument("--tool", metavar="NAME", help="that called this tool")
    parser.add_argument("--model", metavar="NAME", help="that called this model")
    parser.add_argument("--tag", help="with this tag")
    parser.add_argument("--text", help="with this text in their id, error or content, in any case of letters")
    parser.add_argument("--min-duration", type=amount, metavar="SECONDS", help="that took at least so long")
    parser.add_argument("--min-cost", type=amount, metavar="DOLLARS", help="that cost so much, with nested runs")
    parser.add_argument(
        "--score",
        type=_condition,
        metavar="SCORE",
        help="whose newest score is so: 'correct<0.5', 'thumb=down', correct",
    )
    parser.add_argument("--conversation", metavar="ID", help="of this conversation")
    add_kind(parser)
    parser.add_argument(
        "--before", type=moment, metavar="TIME", help="that started before: ISO 8601, or nanoseconds since 1970"
    )
    parser.add_argument("--limit", type=positive, default=20, metavar="N", help="default: %(default)s, the newest")
    add_store_options(parser)


def run(options: Namespace) -> int:
    """Print the runs, and return the exit code: 1 if no run matches.

    Raises:
        StoreError: there is no store that this version can use.
    """
    reader, filters = StoreReader(options.store), {name: getattr(options, name) for name in _FILTERS}
    filters["kind"] = kind_of(options)
    runs = reader.runs(**filters)
    if options.outcome == FAILED and reader.runs(**{**filters, "outcome": TIMEOUT, "limit": 1}):
        print("runs that timed out are not among these; see: --outcome timeout", file=sys.stderr)
    if options.json:
        say_json({"runs": [run_document(row) for row in runs]})
    elif runs:
        say(*run_table(runs))
    else:
        say("no run matches")
    if not runs and filters["kind"] == AGENT and any(reader.runs(**{**filters, "kind": kind}) for kind in KINDS):
        print("runs of judges and experiments are not among these; see: --kind all", file=sys.stderr)
    if not runs and options.score is not None and (hint := _hint(reader, options.score)):
        print(hint, file=sys.stderr)
    return 0 if runs else 1


def run_table(runs: Sequence[RunRow]) -> list[str]:
    """Return a table of runs."""
    is_scored = any(run.scores for run in runs)
    places = [place for place, title in enumerate(_TITLES) if is_scored or title != "SCORES"]
    rows = ([cells[place] for place in places] for cells in map(_cells, runs))
    return table(
        [_TITLES[place] for place in places],
        rows,
        right=_RIGHT,
        names=("AGENT",),
        texts=("SCORES", "QUESTION", "ANSWER"),
        spare=_SPARE,
    )


def _cells(run: RunRow) -> tuple[str, ...]:
    problem, total = run.error or run.error_type, run.total
    return (
        run.run_id[:SHOWN],
        text.clock(run.start),
        f"{run.agent} {_origin(run)}".rstrip(),
        run.status,
        took(run),
        text.count(run.spans),
        _with_total(text.count, _tokens(run), total and _tokens(total)),
        _with_total(text.money, run.cost, total and total.cost),
        " ".join(f"{score.name}={judgement(score)}" for score in run.scores),
        run.question or "",
        f"{run.error_type}: {run.error}" if run.error and run.error_type else problem or run.answer or "",
    )


def judgement(score: ScoreRow) -> str:
    """Return what a score says: its value, its label, or why there is none."""
    if score.error_type:
        return f"!{score.error_type}"
    return f"{score.value:.4g}" if score.value is not None else score.label or ""


def _origin(run: RunRow) -> str:
    if run.replay_of:
        return f"(replay of {run.replay_of[:8]})"
    return f"(nested in {run.parent_run_id[:8]})" if run.parent_run_id else ""


def _tokens(row: RunRow | Total) -> int | None:
    known = [number for number in (row.input_tokens, row.output_tokens) if number is not None]
    return sum(known) if known else None


def _with_total(shown: Callable[[object], str], own: object, total: object) -> str:
    """Return a quantity of a run; in parentheses, with the runs nested in it."""
    return shown(own) if total is None else f"{shown(own)} ({shown(total)})"


def _hint(reader: StoreReader, wanted: ScoreCondition) -> str:
    """Return why no run can have such a score: a slip in a condition makes it a name, or a label."""
    if not reader.runs(score=ScoreCondition(name=wanted.name), limit=1):
        return f"no score is named {wanted.name!r:.200}"
    if wanted.operator == "=" and isinstance(wanted.value, str) and not reader.runs(score=wanted, limit=1):
        return f"no score {wanted.name!r:.200} has the label {wanted.value!r:.200}, which is no number"
    return ""


def _condition(given: str) -> ScoreCondition:
    try:
        return ScoreCondition.of(given)
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from None


def moment(given: str) -> int:
    """Parse a time; return nanoseconds since the epoch.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        return int(given) if given.isdecimal() else int(datetime.fromisoformat(given).timestamp() * 1e9)
    except ValueError:
        raise ArgumentTypeError(f"{given!r} is not a time such as 2026-05-04T12:30") from None


COMMAND: Final = Command(
    name="runs",
    help="List the runs of the local store, the newest first.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid runs",
        "pellucid runs --outcome failed --hub catalogue",
        "pellucid runs --stop-reason max_cost",
        "pellucid runs --score 'correct<0.5'",
        "pellucid runs --conversation ticket-17",
        "pellucid runs --min-duration 10 --before 2026-05-04T12:30 --json",
    ),
)
