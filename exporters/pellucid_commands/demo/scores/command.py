"""Options of `pellucid demo scores`."""

from __future__ import annotations

from argparse import SUPPRESS
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

HELP: Final = "spoil an agent by a worse prompt, see its scores fall, and prove the fix"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--no-color", action="store_true", default=SUPPRESS, help="plain text")
    parser.set_defaults(show=run)


def run(options: Namespace) -> int:
    """Run the demo and return the exit code."""
    from pellucid_commands.demo.scores.session import show

    return show(options)
