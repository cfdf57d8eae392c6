"""The `test` subcommand: a recorded run as a test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.cli import FAILED, Command
from pellucid.errors import ConfigError
from pellucid_commands.replay.modules import module_of
from pellucid_commands.replay.sources import add_source_options, agent_of, tape_of
from pellucid_exporters.stored.text import visible
from pellucid_replay import replay_sync

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

FOLDER: Final = Path("tests", "tapes")
DIGITS: Final = 12
"""Digits of the id of a run that name its tape."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid test`."""
    add_source_options(parser)
    parser.add_argument("--tape", type=Path, metavar="PATH", help=f"where to write the tape (default: {FOLDER}/)")


def run(options: Namespace) -> int:
    """Write the tape, print a test that passes, and return the exit code.

    Raises:
        TapeError: there is no such run, or the recording lacks something.
        ConfigError: there is no such agent, or the tape cannot be written.
    """
    tape = tape_of(options)
    agent = agent_of(options.agent, tape)
    replayed = replay_sync(agent, tape)
    if replayed.divergence is not None:
        _note(
            f"no test: the replay differs from the recording at {replayed.divergence}",
            f"see: pellucid replay {options.run}{f' --agent {options.agent}' if options.agent else ''}",
        )
        return FAILED
    path = options.tape or FOLDER / f"{tape.run_id[:DIGITS]}.jsonl"
    try:
        tape.save(path)
    except OSError as error:
        raise ConfigError(
            f"the tape cannot be written to {path} ({error.strerror}); give --tape another path"
        ) from None
    print(module_of(replayed, path, options.agent, agent), end="")
    notes = [f"wrote {path}, and the test to standard output; run it from here: python -m pytest FILE"]
    if agent is None:
        notes.append("it replays the recording alone; with --agent MODULE:NAME it runs your agent")
    _note(*notes)
    return 0


def _note(*lines: str) -> None:
    for line in lines:
        print(f"pellucid: test: {visible(line)}", file=sys.stderr)


COMMAND: Final = Command(
    name="test",
    help="Turn a recorded run into a test: write its tape, and print a module for pytest.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid test 96c287f9 --agent app.agents:support > tests/test_refund.py",
        "pellucid test 96c287f9 --tape tests/tapes/refund.jsonl > tests/test_refund.py",
    ),
)
