"""Options of `pellucid demo durable`."""

from __future__ import annotations

import sys
from argparse import SUPPRESS, ArgumentTypeError
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "kill the worker of a durable run, and see another one continue it"
MOST_WORKERS: Final = 8


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--store",
        metavar="URL",
        help="sqlite:///path or postgresql://user@host/database (default: a SQLite file that is deleted afterwards)",
    )
    parser.add_argument(
        "--workers",
        type=_number,
        metavar="N",
        help="workers after the kill (default: 2 with PostgreSQL, otherwise 1)",
    )
    parser.add_argument("--serve", action="store_true", help="deprecated: the demo always serves the run over HTTP")
    parser.add_argument("--queue", metavar="URL", help="nats://host:4222 wakes workers (default: the database does)")
    parser.add_argument("--otlp", metavar="URL", default=SUPPRESS, help="also send the trace there")
    parser.add_argument("--no-color", action="store_true", default=SUPPRESS, help="plain text")
    parser.set_defaults(show=run)


def _number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_WORKERS:
        raise ArgumentTypeError(f"{text!r} is not a number of workers from 1 to {MOST_WORKERS}")
    return int(text)


def run(options: Namespace) -> int:
    """Run the demo and return the exit code.

    Raises:
        ConfigError: the demo cannot start; the message names the remedy.
        PellucidError: a process of the demo has ended.
    """
    if options.serve:
        print("pellucid: demo durable: --serve is deprecated: it always serves; omit it", file=sys.stderr)
    from pellucid_commands.demo.durable.session import show

    return show(options)
