"""The `tools` subcommand: the lock file of the tools that the hubs of agents list, and what differs from it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from pellucid.agent import configuration_of
from pellucid.cli import Command
from pellucid.context import UNLIMITED, DiscoveryContext, Identity
from pellucid.errors import ConfigError, DiscoveryError
from pellucid.providers.locked import hubs_of, ignoring_locks
from pellucid.tools.lock import Definition, Difference, Key, ToolLock
from pellucid_commands.inspection.output import say
from pellucid_commands.serving.agents import load_agents

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator, Sequence

    from pellucid import Agent

LOCK_FILE: Final = "pellucid.lock"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the subcommands of `pellucid tools`."""
    actions = parser.add_subparsers(title="actions", metavar="lock|diff", dest="action", required=True)
    described = "Write the lock file: what the hubs of agents say of their tools now, for a review."
    lock = actions.add_parser("lock", help=described, description=described)
    _add_options(lock)
    lock.add_argument("--add", action="store_true", help="keep the tools of the file that the hubs do not list now")
    described = "Show word by word what hubs have changed since the lock file; exit code 1 if anything has changed."
    _add_options(actions.add_parser("diff", help=described, description=described))


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument("agents", nargs="+", metavar="MODULE:NAME", help="agents, such as app.agents:support")
    parser.add_argument(
        "--file", type=Path, default=Path(LOCK_FILE), metavar="PATH", help=f"the lock file (default: {LOCK_FILE})"
    )
    parser.add_argument("--tenant", metavar="ID", help="list the tools of this tenant")
    parser.add_argument("--principal", metavar="ID", help="list the tools of this principal")


def run(options: Namespace) -> int:
    """Write or compare the lock file, and return the exit code: 1 if it differs from what the hubs list.

    Raises:
        ConfigError: there is no such agent or lock file, or a hub cannot be asked.
    """
    with ignoring_locks():
        agents = load_agents(options.agents)
    return _lock(options, agents) if options.action == "lock" else _diff(options, agents)


def _lock(options: Namespace, agents: Sequence[Agent[Any, Any]]) -> int:
    old = ToolLock.read(options.file) if options.file.exists() else ToolLock({})
    now, hubs = anyio.run(_listed, options, agents)
    new = ToolLock({**old.tools, **now.tools}) if options.add else now
    new.write(options.file)
    changes = _counted(old.compared(new, {hub for hub, _ in (*old.tools, *new.tools)}))
    say(f"{options.file}: {_size(new, hubs)}{changes and f': {changes}'}")
    return 0


def _diff(options: Namespace, agents: Sequence[Agent[Any, Any]]) -> int:
    lock = ToolLock.read(options.file)
    now, hubs = anyio.run(_listed, options, agents)
    differences = lock.compared(now, hubs)
    for difference in differences:
        say(*_lines(difference))
    if not differences:
        say(f"No difference from {options.file} in {_size(now, hubs)}.")
        return 0
    say(f"Differences from {options.file}: {_counted(differences)}.")
    return 1


def _size(lock: ToolLock, hubs: set[str]) -> str:
    tools, count = len(lock.tools), len({*hubs, *(hub for hub, _ in lock.tools)})
    return f"{tools} tool{'s' * (tools != 1)} of {count} hub{'s' * (count != 1)}"


def _lines(difference: Difference) -> Iterator[str]:
    yield f"{difference.change} {difference.hub} {difference.name}"
    if difference.change != "removed":
        yield from (f"    {line}" for line in difference.text.split("\n") if line)


def _counted(differences: Sequence[Difference]) -> str:
    counts = Counter(difference.change for difference in differences)
    return ", ".join(f"{number} {change}" for change, number in sorted(counts.items()))


async def _listed(options: Namespace, agents: Sequence[Agent[Any, Any]]) -> tuple[ToolLock, set[str]]:
    """Return what the hubs of agents list now, and their ids.

    Raises:
        ConfigError: a hub cannot be asked, or lists a tool differently to two agents.
    """
    identity = None
    if options.tenant is not None or options.principal is not None:
        identity = Identity(tenant=options.tenant, principal=options.principal)
    tools: dict[Key, Definition] = {}
    hubs: set[str] = set()
    for agent in agents:
        setup = configuration_of(agent).setup
        ctx = DiscoveryContext(identity=identity, active_skill_ids=tuple(setup.skills), patience=UNLIMITED)
        try:
            async with agent:
                for lister in hubs_of(setup):
                    hub = lister.provider.id
                    hubs.add(hub)
                    catalog = await lister.peek(ctx, setup.limits.discovery_timeout)
                    for key, found in ToolLock.of({hub: catalog.tools}).tools.items():
                        if tools.setdefault(key, found).digest != found.digest:
                            raise ConfigError(
                                f"hub {hub!r} lists tool {key[1]!r} differently to two of these agents; "
                                f"give each a lock file of its own"
                            )
        except DiscoveryError as error:
            raise ConfigError(f"agent {agent.name!r}: {error}") from error
    return ToolLock(tools), hubs


COMMAND: Final = Command(
    name="tools",
    help="Lock the definitions of hubs' tools, and show what hubs have changed.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid tools lock app.agents:support",
        "pellucid tools diff app.agents:support",
        "pellucid tools diff app.agents:support --file locks/support.lock",
    ),
)
