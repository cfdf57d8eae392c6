"""The `score` subcommand: scores of recorded runs, once or as they end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid.scores.scoring import check_scorer, scores_of
from pellucid_commands.inspection.options import RUN, add_store_options, run_of
from pellucid_commands.inspection.output import say, say_json, table
from pellucid_commands.inspection.runs import moment
from pellucid_commands.receiving.listening import ADDRESS, RECEIVED, address
from pellucid_commands.scoring.output import cells, document, telemetry_of
from pellucid_commands.scoring.recording import Recorder
from pellucid_commands.scoring.watch import watch
from pellucid_commands.serving.agents import load
from pellucid_exporters.local.options import DEFAULT_PATH
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.stored.evidence import evidence_of_run

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid.scores import Score, Scorer
    from pellucid_exporters import Telemetry
    from pellucid_exporters.stored.rows import RunRow

WATCH: Final = "watch"

_TITLES: Final = ("RUN", "SCORE", "VALUE", "LABEL", "EXPLANATION")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid score`."""
    parser.add_argument("runs", nargs="+", metavar="RUN|watch", help=f"{RUN}; or `watch`: each run as it ends, once")
    parser.add_argument(
        *("--scorer", "--scorers"),
        dest="scorer",
        action="append",
        required=True,
        metavar="MODULE:NAME",
        help="a scorer, or a list of scorers, such as app.scorers:scorers; may be repeated",
    )
    parser.add_argument(
        "--otlp", nargs="?", const=True, default=False, metavar="URL", help="send the scores by OTLP, too"
    )
    parser.add_argument("--agent", metavar="NAME", help="watch the runs of this agent")
    parser.add_argument(
        "--since", type=moment, metavar="TIME", help="watch the runs since: ISO 8601; default: the first watch"
    )
    parser.add_argument("--once", action="store_true", help="watch no longer than there are runs to score")
    parser.add_argument(
        "--listen",
        nargs="?",
        const=address(ADDRESS),
        type=address,
        metavar="HOST:PORT",
        help=f"watch what arrives here by OTLP over HTTP, kept in --store, by default {RECEIVED} "
        f"(default address: {ADDRESS}; elsewhere than on this machine with the token of PELLUCID_API_TOKEN only)",
    )
    add_store_options(parser)
    parser.set_defaults(store=None)


def run(options: Namespace) -> int:
    """Score the runs, and return the exit code: 1 if a scorer failed.

    Raises:
        ConfigError: there is no such scorer.
        StoreError: there is no store that this version can use.
        PellucidError: the store has no such run.
    """
    scorers = load_scorers(options.scorer)
    options.store = options.store or Path(DEFAULT_PATH if options.listen is None else RECEIVED)
    if options.runs == [WATCH]:
        return watch(options, scorers)
    if options.listen is not None:
        raise ConfigError(f"--listen is for `{WATCH}`")
    reader = StoreReader(options.store)
    with telemetry_of(options) as telemetry:
        rows = [run_of(reader, name) for name in options.runs]
        return _score(options, reader, scorers, telemetry, rows)


def load_scorers(places: Sequence[str]) -> list[Scorer]:
    """Return the scorers at these places; a name may also hold a list of scorers.

    Raises:
        ConfigError: a place has another form, or there is no scorer.
    """
    found = [(place, load(place)) for place in places]
    scorers: list[Any] = []
    for place, value in found:
        items = list(value) if isinstance(value, list | tuple) else [value]
        if not items or not all(callable(item) for item in items):
            raise ConfigError(f"--scorer {place}: there is no scorer, nor a list of scorers")
        scorers += items
    for scorer in scorers:
        check_scorer(scorer)
    return scorers


def _score(
    options: Namespace, reader: StoreReader, scorers: Sequence[Scorer], telemetry: Telemetry, rows: Sequence[RunRow]
) -> int:
    found: list[tuple[RunRow, Sequence[Score]]] = []
    with closing(Recorder(options.store, telemetry, is_once=False)) as recorder:
        for row in rows:
            evidence = evidence_of_run(reader, row)
            scores = anyio.run(scores_of, scorers, evidence)
            recorder.record(evidence.scored, scores)
            found.append((row, scores))
    if options.json:
        say_json({"scores": [{"run_id": row.run_id, **document(each)} for row, scores in found for each in scores]})
    elif lines := [cells(row, each) for row, scores in found for each in scores]:
        say(*table(_TITLES, lines, right=("VALUE",), names=("SCORE",), texts=("EXPLANATION",)))
    else:
        say("no scorer applies")
    return int(any(each.error_type for _, scores in found for each in scores))


COMMAND: Final = Command(
    name="score",
    help="Score recorded runs of the local store.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid score 96c287f9 --scorer pellucid.scores:no_secret",
        "pellucid score watch --scorer app.scorers:scorers --otlp http://localhost:4318",
        "pellucid score watch --listen --scorer app.scorers:scorers",
        "pellucid score watch --scorer app.scorers:scorers --since 2026-05-04 --once",
    ),
)
