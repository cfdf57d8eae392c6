"""The `runbook` subcommand: what to do about an alert."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid.cli import Command
from pellucid_commands.inspection.output import say
from pellucid_exporters.alerting.runbooks import PLACEHOLDERS, runbook, runbook_names

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid runbook`."""
    parser.add_argument("alert", nargs="?", metavar="ALERT", help="name of the alert; without it, all names are listed")
    for name, label in PLACEHOLDERS.items():
        parser.add_argument(f"--{name}", metavar="NAME", help=f"the alert's label {label}, for the queries")


def run(options: Namespace) -> int:
    """Print a runbook, or the names of all.

    Raises:
        ConfigError: there is no such runbook.
    """
    if options.alert is None:
        say(*runbook_names())
    else:
        labels = {label: getattr(options, name) or "" for name, label in PLACEHOLDERS.items()}
        say(*runbook(options.alert, labels).splitlines())
    return 0


COMMAND: Final = Command(
    name="runbook",
    help="Print what to do about an alert, with its hub, tool, model or agent in the queries.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid runbook",
        "pellucid runbook ToolHubSlow --hub catalogue --job shop",
        "pellucid runbook ToolFailing --tool search",
    ),
)
