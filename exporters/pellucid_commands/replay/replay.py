"""The `replay` subcommand: a recorded run, played again and compared."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid.text import excerpt
from pellucid_commands.inspection.options import amount
from pellucid_commands.inspection.output import cut, flat, say, say_json
from pellucid_commands.replay.models import compare_models
from pellucid_commands.replay.sources import add_source_options, agent_of, tape_of
from pellucid_exporters.stored import text
from pellucid_exporters.stored.differences import compared
from pellucid_exporters.stored.stops import stop_words
from pellucid_replay import replay_sync
from pellucid_replay.naming import settings

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid_replay import Divergence, Replay

MOST: Final = 40
"""Lines of a difference, and further differences, that are shown."""

_MARKS: Final = {"less": "-", "more": "+", "same": " "}
_MODEL: Final = "model="


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid replay`."""
    add_source_options(parser)
    parser.add_argument(
        "--live",
        action="append",
        default=[],
        metavar="PART",
        help="what is not answered from the tape: model, model=HOST:NAME, tool:NAME or hub:ID; may be repeated",
    )
    parser.add_argument(
        "--models", metavar="HOST:NAME,…", help="ask each of these models in place of the recorded one, and compare"
    )
    parser.add_argument(
        "--timing", type=amount, default=0, metavar="FACTOR", help="of the recorded durations; 1 takes as long"
    )
    parser.add_argument(
        "--on-divergence",
        choices=("stop", "live"),
        default="stop",
        help="where the tape has no answer: stop, or continue with the agent's own parts (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object, for programs")


def run(options: Namespace) -> int:
    """Replay the run, print what differs, and return the exit code: 1 if anything does, as diff(1).

    Raises:
        TapeError: there is no such run, or the recording lacks something.
        ConfigError: an option names something that does not exist.
    """
    tape = tape_of(options)
    agent = agent_of(options.agent, tape)
    live, model = _live_parts(options.live)
    choices: dict[str, Any] = {"live": live, "timing": options.timing, "on_divergence": options.on_divergence}
    if options.models is not None:
        if model is not None or "model" in live:
            raise ConfigError("--models and --live model exclude each other; give one of them")
        return compare_models(agent, tape, options.models, choices, as_json=options.json)
    started = time.perf_counter()
    replayed = replay_sync(agent, tape, model=model, **choices)
    seconds = time.perf_counter() - started
    if options.json:
        say_json(_document(replayed, seconds))
    else:
        say(*_lines(replayed, seconds))
    return 0 if _is_same(replayed) else 1


def _live_parts(given: Sequence[str]) -> tuple[set[str], str | None]:
    """Return what is live, and the name of the model in place of the agent's.

    Raises:
        ConfigError: there are two models.
    """
    models = [part.removeprefix(_MODEL) for part in given if part.startswith(_MODEL)]
    if len(models) > 1:
        raise ConfigError(f"--live names {len(models)} models; give one, or --models {','.join(models)}")
    return {part for part in given if not part.startswith(_MODEL)}, models[0] if models else None


def _is_same(replayed: Replay[Any]) -> bool:
    return replayed.divergence is None and not replayed.differences


def _lines(replayed: Replay[Any], seconds: float) -> Iterator[str]:
    count, took = len(replayed.tape.spans), f"replayed in {text.seconds(seconds)}"
    if _is_same(replayed):
        yield f"same       {count} boundaries of run {replayed.tape.run_id}, {took}"
    else:
        yield f"different  run {replayed.tape.run_id}, {took}"
    outcome = "stopped" if _is_stopped(replayed) else replayed.outcome
    yield cut(f"{outcome:<10} {flat(_ending(replayed))}".rstrip())
    first = replayed.divergence or next(iter(replayed.differences), None)
    if first is None:
        return
    yield ""
    yield f"{_place(first)}: {first.what}"
    yield from _diff(first)
    if _is_stopped(replayed):
        yield "The tape has no answer to this: the replay stopped. --on-divergence live continues."
        return
    others = [other for other in replayed.differences if other != first]
    if others:
        places = {(other.run_id, other.span_id, _place(other)) for other in others}
        yield ""
        yield f"Then {_counted(len(others), 'more difference')}, in {_counted(len(places), 'boundary')}:"
    yield from (cut(f"  {_place(other)}: {_sides(other)}") for other in others[:MOST])
    if len(others) > MOST:
        yield f"  … {len(others) - MOST} more; --json has all"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else f'{noun}s' if not noun.endswith('y') else f'{noun[:-1]}ies'}"


def _is_stopped(replayed: Replay[Any]) -> bool:
    """Return whether a divergence stopped the replay."""
    return replayed.result is None and replayed.error is None and not replayed.is_stopped


def _ending(replayed: Replay[Any]) -> str:
    if replayed.error is not None:
        return str(replayed.error)
    if replayed.result is None:
        return "where the recorded run was stopped" if replayed.is_stopped else ""
    limit = stop_words({semconv.STOP_REASON: replayed.result.stop_reason}, _limits(replayed))
    if limit != replayed.result.stop_reason:
        return limit
    output = replayed.result.output
    return excerpt(" ".join(str(output).split())) if output is not None else replayed.result.status


def _limits(replayed: Replay[Any]) -> dict[str, Any]:
    """Return the limits of the replay that are not the default ones."""
    for span in replayed.spans:
        if span.attributes.get(semconv.PHASE) == semconv.RUN:
            return dict(settings(span.attributes).get("limits") or {})
    return {}


def _place(divergence: Divergence) -> str:
    iteration = f"[{divergence.iteration}] " if divergence.iteration is not None else ""
    return f"{iteration}{flat(divergence.boundary)}"


def _sides(divergence: Divergence) -> str:
    if divergence.recorded is None or divergence.replayed is None:
        where = "replay" if divergence.recorded is None else "recording"
        return f"{divergence.what}, only in the {where}"
    return divergence.what


def _diff(divergence: Divergence) -> Iterator[str]:
    if divergence.what == "boundary":
        yield f"  {_sides(divergence).partition(', ')[2]}"
        return
    lines = [line for line in compared(divergence.what, divergence.recorded, divergence.replayed) if line[0] != "skip"]
    yield from (f"  {_MARKS[kind]} {line}" for kind, line in lines[:MOST])
    if len(lines) > MOST:
        yield f"  … {len(lines) - MOST} more lines; --json has all"
    if not lines:
        yield "  the digests differ, and the recorded content does not: see the boundaries before"


def _document(replayed: Replay[Any], seconds: float) -> dict[str, Any]:
    return {
        "run": replayed.tape.run_id,
        "same": _is_same(replayed),
        "boundaries": len(replayed.tape.spans),
        "seconds": seconds,
        "outcome": replayed.outcome,
        "tool_calls": replayed.tool_calls,
        "error": str(replayed.error) if replayed.error is not None else None,
        "is_stopped": replayed.is_stopped,
        "divergence": asdict(replayed.divergence) if replayed.divergence is not None else None,
        "differences": [asdict(other) for other in replayed.differences],
    }


COMMAND: Final = Command(
    name="replay",
    help="Play a recorded run again, without its model, hubs and tools, and compare.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid replay 96c287f9 --agent app.agents:support",
        "pellucid replay 96c287f9 --agent app.agents:support --live tool:search",
        "pellucid replay 96c287f9 --models openai:gpt-6-luna,anthropic:claude-haiku-5-5",
    ),
)
