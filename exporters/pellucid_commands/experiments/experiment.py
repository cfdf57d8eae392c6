"""The `experiment` subcommand: ask a set of cases again, score the answers, compare, and say whether gates hold."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

import anyio

from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid.telemetry import TelemetryOptions
from pellucid.telemetry.pipeline import current_default
from pellucid_commands.experiments.outputs import NOT_JUDGED, Progress, check_folders, show, verdict, write_files
from pellucid_commands.inspection.options import amount
from pellucid_commands.serving.agents import load, load_agents
from pellucid_commands.serving.numbers import positive
from pellucid_experiments.case_files import load_cases
from pellucid_experiments.comparing import compared, counterpart, load_report
from pellucid_experiments.experimenting import Experiment
from pellucid_experiments.journal import Journal
from pellucid_experiments.naming import checked_name, conversation_of
from pellucid_exporters import configure
from pellucid_exporters.local.options import DEFAULT_PATH
from pellucid_exporters.recordings import open_recording
from pellucid_exporters.stored.text import visible

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

    from pellucid import Agent
    from pellucid.scores import Scorer
    from pellucid_experiments import Comparison, Report
    from pellucid_exporters.stored.reader import Recording

FOLDER: Final = "experiments"
"""Folder of journals, beside the store."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid experiment`."""
    parser.add_argument("set", type=Path, metavar="SET", help="the cases, a file in JSON Lines; see: pellucid cases")
    parser.add_argument(
        "--agent",
        action="append",
        required=True,
        metavar="[NAME=]MODULE:NAME",
        help="the agent, and its name in the report, if it shall have another; may be repeated",
    )
    parser.add_argument(
        "--scorers", action="append", required=True, metavar="MODULE:NAME", help="a scorer or a list; may be repeated"
    )
    parser.add_argument("--models", metavar="HOST:NAME,…", help="ask each agent with each of these models")
    parser.add_argument("--tag", action="append", default=[], metavar="TAG", help="cases with a tag; may be repeated")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--replay", type=Path, metavar="STORE", help="where recorded hubs and tools answer from (default: --store)"
    )
    how.add_argument("--live", action="store_true", help="call hubs and tools instead")
    parser.add_argument(
        "--live-part",
        action="append",
        default=[],
        metavar="PART",
        help="call this one in spite of --replay: tool:NAME or hub:ID; may be repeated",
    )
    parser.add_argument("--repeat", type=positive, default=1, metavar="N", help="ask each case so often (default: 1)")
    parser.add_argument("--jobs", type=positive, default=8, metavar="N", help="runs at the same time (default: 8)")
    parser.add_argument("--retries", type=_count, default=2, metavar="N", help="after failures that pass (default: 2)")
    parser.add_argument(
        "--max-cost", type=amount, metavar="DOLLARS", help="for the calls of all models together, also of judges"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="name of the experiment (default: that of the set, and the time)"
    )
    parser.add_argument("--resume", metavar="NAME", help="continue the experiment of this name")
    parser.add_argument(
        "--store",
        type=Path,
        default=Path(DEFAULT_PATH),
        metavar="PATH",
        help=f"where the runs are kept (default: {DEFAULT_PATH})",
    )
    _add_gates(parser)


def _add_gates(parser: ArgumentParser) -> None:
    gates = parser.add_argument_group("gates and outputs")
    gates.add_argument(
        "--fail-under",
        type=_gate,
        action="append",
        default=[],
        metavar="SCORE=MEAN",
        help="exit with 1 if the mean is lower, in which what was not judged counts as 0; may be repeated",
    )
    gates.add_argument("--fail-on-regression", action="store_true", help="exit with 1 if a score is worse, p < 0.05")
    gates.add_argument(
        "--baseline", metavar="FILE|NAME", help="compare with a report, or an experiment (default: the first candidate)"
    )
    gates.add_argument("--out", type=Path, metavar="FILE", help="write the report as JSON")
    gates.add_argument("--markdown", type=Path, metavar="FILE", help="write it as Markdown")
    gates.add_argument("--junit", type=Path, metavar="FILE", help="write it as JUnit's XML")


def run(options: Namespace) -> int:
    """Run the experiment and return the exit code: 1 if a gate fails, 3 if not all could be judged.

    Raises:
        ConfigError: an option names something that does not exist, or cannot work.
    """
    check_folders(options)
    name = checked_name(options.resume or options.name or _named(options.set))
    if options.resume and options.name not in {None, options.resume}:
        raise ConfigError("--resume names the experiment; leave --name out")
    folder = options.store.parent / FOLDER
    baseline = load_report(_baseline(folder, options.baseline)) if options.baseline else None
    cases = load_cases(options.set, options.tag)
    if not cases:
        raise ConfigError(f"{options.set}: the set has no case; see: pellucid cases add --help")
    agents, scorers = _agents(options.agent), _scorers(options.scorers)
    telemetry = _telemetry(options.store)
    try:
        experiment = Experiment(
            cases,
            agents,
            scorers=scorers,
            models=[part.strip() for part in (options.models or "").split(",") if part.strip()],
            replay=None if options.live else open_recording(options.replay or options.store),
            live=options.live_part,
            repeat=options.repeat,
            jobs=options.jobs,
            max_cost=options.max_cost,
            retries=options.retries,
            name=name,
        )
        _check_comparable(list(experiment.candidates), baseline, options)
        report = _run(experiment, folder / f"{name}.jsonl", options)
    finally:
        if telemetry is not None:
            telemetry.shutdown()
    comparisons = compared(report, baseline)
    return _ended(report, comparisons, options)


def _run(experiment: Experiment, path: Path, options: Namespace) -> Report:
    journal = Journal.open(path, experiment.plan, resume=bool(options.resume))
    try:
        done = {trial.key for trial in journal.trials if trial.is_done}
        recording = _tokens_of(options) if options.live else None
        _note(f"experiment {experiment.name}: estimated cost: {experiment.estimate(done, recording)}")
        with Progress(len(experiment.planned) - len(done)) as progress:
            return anyio.run(partial(experiment.run, journal, progress.advance))
    except KeyboardInterrupt:
        _note(f"interrupted; continue with the same command and --resume {experiment.name}")
        raise
    finally:
        journal.close()


def _ended(report: Report, comparisons: Sequence[Comparison], options: Namespace) -> int:
    gates = dict(options.fail_under)
    show(report, comparisons)
    _note(f"the runs are in the conversation {conversation_of(report.name)}; see: pellucid view")
    write_files(report, comparisons, gates, options)
    return verdict(report, comparisons, gates, fail_on_regression=options.fail_on_regression)


def _check_comparable(candidates: Sequence[str], baseline: Report | None, options: Namespace) -> None:
    """Check that there is something to compare each candidate with, before anything is asked.

    Raises:
        ConfigError: there is not.
    """
    if baseline is not None:
        for name in candidates:
            counterpart(name, baseline)
    elif options.fail_on_regression and len(candidates) == 1:
        raise ConfigError(
            "--fail-on-regression: there is nothing to compare with; give --baseline, or a second candidate"
        )


def _named(path: Path) -> str:
    return f"{path.stem}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{token_hex(3)}"  # several may begin in one second


def _baseline(folder: Path, given: str) -> Path:
    path = Path(given)
    return path if path.is_file() else folder / f"{checked_name(given)}.jsonl"


def _tokens_of(options: Namespace) -> Recording | None:
    """Return where recorded tokens may be, for the estimate of a live experiment."""
    return open_recording(options.store) if options.store.is_file() else None


def _agents(places: Sequence[str]) -> dict[str, Agent[Any, Any]]:
    """Return agents by name: the given one, or else what tells their places apart.

    Raises:
        ConfigError: there is no such agent, or two have the same name.
    """
    found: dict[str, Agent[Any, Any]] = {}
    several = len(places) > 1
    for text in places:
        given, sign, place = text.rpartition("=")
        if sign and not given.strip():
            raise ConfigError(f"--agent {text!r} is no agent; write MODULE:NAME or NAME=MODULE:NAME")
        agents = load_agents([place])
        if given and len(agents) > 1:
            raise ConfigError(f"--agent {text}: there are {len(agents)} agents, which cannot all be named {given!r}")
        for agent in agents:
            name = given or (place.rpartition(":")[2] if several else agent.name)
            if name in found and not given:
                name = place if place not in found else f"{place} {agent.name}"
            if name in found:
                raise ConfigError(f"--agent {text}: there are two agents of the name {name!r}; name them one by one")
            found[name] = agent
    return found


def _scorers(places: Sequence[str]) -> list[Scorer]:
    found: list[Scorer] = []
    for place in places:
        loaded = load(place)
        if loaded is None:
            raise ConfigError(f"--scorers {place}: there is nothing of that name; name a scorer, or a list of them")
        found.extend(loaded if isinstance(loaded, list | tuple) else [loaded])
    return found


def _telemetry(store: Path) -> Any:
    """Send the runs to the store, unless the modules of the agents have said where telemetry goes."""
    if not isinstance(current_default(), TelemetryOptions):
        return None
    return configure(os.environ.get("OTEL_SERVICE_NAME", "experiment"), local=store)


def _gate(text: str) -> tuple[str, float]:
    name, sign, value = text.rpartition("=")
    try:
        least = float(value)
    except ValueError:
        least = -1.0
    if not sign or not name or not 0 <= least < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a score and its lowest mean, such as correct=0.9")
    return name, least


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > 100:  # noqa: PLR2004  (nobody waits longer)
        raise ArgumentTypeError(f"{text!r} is not a number from 0 to 100")
    return int(text)


def _note(text: str) -> None:
    print(f"pellucid: {visible(text)}", file=sys.stderr)


_EXAMPLE: Final = "pellucid experiment cases/refunds.jsonl --agent app.agents:support --scorers app.scorers:correct"

COMMAND: Final = Command(
    name="experiment",
    help=f"Ask a set of cases again, score the answers, and check gates (1: one fails; {NOT_JUDGED}: not all judged).",
    add_arguments=add_arguments,
    run=run,
    examples=(
        _EXAMPLE,
        f"{_EXAMPLE} --models openai:gpt-6-luna,anthropic:claude-haiku-5-5 --repeat 5 --max-cost 2",
        f"{_EXAMPLE} --baseline main.json --fail-under correct=0.9 --fail-on-regression --junit report.xml",
        f"{_EXAMPLE} --resume refunds-20261127-140211-8c01f2",
    ),
)
