"""The `durable` subcommand: its actions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import anyio

from pellucid.cli import Command
from pellucid_commands.durable import actions, diagnosis, listing, migration, showing, workers

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Coroutine, Mapping

_ACTIONS: Final[
    Mapping[str, tuple[str, Callable[[ArgumentParser], None], Callable[[Namespace], Coroutine[Any, Any, int]]]]
] = {
    "list": ("List runs, the newest first; exit code 1 if no run matches.", listing.add_list, listing.list_runs),
    "show": ("Show where a run is, who holds it, and what it waits for.", showing.add_show, showing.show),
    "calls": ("List the calls that runs wait for, the oldest first.", listing.add_calls, listing.calls),
    "events": ("Print the events of a run.", listing.add_events, listing.events),
    "retry": ("Continue runs that failed or were cancelled, from their journals.", actions.add_retry, actions.retry),
    "cancel": ("Cancel runs.", actions.add_cancel, actions.cancel),
    "callback": (
        "Send the latest states of runs to their callback URLs again.",
        actions.add_callback,
        actions.callback,
    ),
    "settle": ("Store the result of calls that runs wait for.", actions.add_settle, actions.settle),
    "decide": ("Decide about an approval that a run waits for.", actions.add_decide, actions.decide),
    "purge": ("Delete runs that ended long ago.", actions.add_purge, actions.purge),
    "workers": ("List the workers of all processes.", workers.add_workers, workers.workers),
    "drain": ("Ask a worker to claim nothing more and to end.", actions.add_drain, actions.drain),
    "migrate": ("Bring the schema of a store to this version.", migration.add_migrate, migration.migrate),
    "doctor": (
        "Find what is stuck, and say why and what to do; exit code 1 if anything is.",
        diagnosis.add_doctor,
        diagnosis.doctor,
    ),
}
"""Help, options and function of each."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions of `pellucid durable`."""
    parsers = parser.add_subparsers(title="actions", metavar=" | ".join(_ACTIONS), required=True)
    for name, (described, add_options, act) in _ACTIONS.items():
        action = parsers.add_parser(name, help=described, description=described)
        add_options(action)
        action.set_defaults(act=act)


def run(options: Namespace) -> int:
    """Do what was asked, and return the exit code: 0 done, 1 nothing found or refused.

    Raises:
        ConfigError: the store cannot be opened, or there is no such file.
        StoreUnavailable: the database did not answer in time.
    """
    code: int = anyio.run(options.act, options)
    return code


COMMAND: Final = Command(
    name="durable",
    help="Look at the durable runs of a store, and mend them.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid durable doctor --store postgresql://app@localhost/runs",
        "pellucid durable list --status open --older-than 1h",
        "pellucid durable list --agent support --text refund --json",
        "pellucid durable show 7f2a9c",
        "pellucid durable calls --kind approval",
        "pellucid durable events 7f2a9c --follow",
        "pellucid durable cancel 7f2a9c --reason 'order withdrawn'",
        "pellucid durable callback 7f2a9c",
        "pellucid durable workers",
        "pellucid durable retry 7f2a9c --reason 'the account exists now'",
        "pellucid durable settle async_tool_51d0 --output '{\"ok\": true}'",
        "pellucid durable decide 7f2a9c approval_51d0 --deny --reason 'too expensive'",
        "pellucid durable purge --older-than 30d --status failed --dry-run",
        "pellucid durable drain worker-2:1",
        "pellucid durable migrate --check",
    ),
)
