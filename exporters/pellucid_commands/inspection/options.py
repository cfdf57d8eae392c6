"""Options that the commands share, and the runs that they name."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.errors import PellucidError
from pellucid_exporters.local.options import DEFAULT_PATH
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.stored.rows import AGENT, ALL, KINDS

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid_exporters.stored.rows import RunRow

LARGEST: Final = 1_000_000
"""Maximum of a number on the command line: of rows, minutes, seconds or dollars."""
RUN: Final = "its id, a prefix of it, or its trace id"


def add_store_options(parser: ArgumentParser) -> None:
    """Declare `--store` and `--json`."""
    parser.add_argument(
        "--store", type=Path, default=Path(DEFAULT_PATH), metavar="PATH", help=f"default: {DEFAULT_PATH}"
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object, for programs")


def add_kind(parser: ArgumentParser) -> None:
    """Declare `--kind`."""
    parser.add_argument(
        "--kind",
        choices=(AGENT, *KINDS, ALL),
        help="of judges, of experiments, or of all (default: agent: neither; all with --conversation)",
    )


def kind_of(options: Namespace) -> str:
    """Return which runs are wanted: those of a conversation are, whatever they are."""
    given: str | None = options.kind
    return given or (ALL if getattr(options, "conversation", None) else AGENT)


def run_of(reader: StoreReader, name: str) -> RunRow:
    """Return the run that a user names.

    Raises:
        PellucidError: the store has no such run, or several.
    """
    run = reader.run(name)
    if run is None:
        raise PellucidError(f"the store has no run {name!r}, or several that start so; see: pellucid runs")
    return run


def positive(text: str) -> int:
    """Parse a whole number above 0.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or not 0 < int(text[:20]) <= LARGEST:
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1 to {LARGEST:,}")
    return int(text)


def amount(text: str) -> float:
    """Parse a number of seconds or dollars.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= LARGEST:
        raise ArgumentTypeError(f"{text!r} is not a number from 0 to {LARGEST:,}")
    return number
