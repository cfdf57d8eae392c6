"""The `pellucid` command. Its subcommands come from the entry-point group `pellucid.commands`.

A package adds one by naming a `Command` in its metadata:

```toml
[project.entry-points."pellucid.commands"]
demo = "pellucid_commands.demo.command:COMMAND"
```
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final

import pellucid
from pellucid.errors import ConfigError, PellucidError
from pellucid.text import clean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "Command", "main"]

GROUP: Final = "pellucid.commands"
"""The entry-point group of subcommands."""

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count
PIPE_CLOSED: Final = 141  # 128 + SIGPIPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One subcommand.

    Attributes:
        name: What is typed after `pellucid`.
        help: One line for `pellucid --help`.
        add_arguments: Declares the subcommand's options.
        run: Does the work with the parsed options and returns the exit code. A `ConfigError` it raises becomes a
            message and exit code 2, any other `PellucidError` a message and 1, an interrupt 130.
    """

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that `argv` names (the process's own arguments unless given) and return the exit code.

    Raises:
        SystemExit: the arguments are wrong (code 2), or only `--help` or `--version` was asked for.
    """
    parser = _parser(_installed_commands())
    options = parser.parse_args(argv)
    if options.command is None:
        parser.print_help(sys.stderr)
        return MISUSED
    return _run(options.command, options)


def _installed_commands() -> list[Command]:
    """Load all subcommands; what is wrong with one is reported and does not keep the others from working."""
    found: dict[str, list[tuple[EntryPoint, Command]]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            command = point.load()
        except Exception as error:  # noqa: BLE001  (another package's module; whatever is wrong with it is reported)
            _complain(f"subcommand {point.name!r} cannot be loaded from {point.value}: {error}")
            continue
        if isinstance(command, Command):
            found.setdefault(command.name, []).append((point, command))
        else:
            _complain(f"subcommand {point.name!r}: {point.value} is not a pellucid.cli.Command")
    for name, declared in found.items():
        if len(declared) > 1:
            _complain_of_several(name, [point for point, _ in declared])
    return [declared[0][1] for declared in found.values() if len(declared) == 1]


def _complain_of_several(name: str, points: Sequence[EntryPoint]) -> None:
    packages = sorted((point.dist.name if point.dist else "unknown", point.value) for point in points)
    named = " and ".join(f"{package} ({value})" for package, value in packages)
    remedy = "uninstall the package that you do not need: pip uninstall NAME"
    _complain(f"subcommand {name!r} is declared more than once, by {named}; {remedy}")


def _parser(commands: Sequence[Command]) -> ArgumentParser:
    parser = ArgumentParser(prog="pellucid", description=pellucid.__doc__)
    parser.add_argument("--version", action="version", version=f"pellucid {pellucid.__version__}")
    parser.set_defaults(command=None)
    subparsers = parser.add_subparsers(title="commands", metavar="command")
    for command in commands:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.add_arguments(subparser)
        subparser.set_defaults(command=command)
    return parser


def _run(command: Command, options: Namespace) -> int:
    try:
        code = command.run(options)
        sys.stdout.flush()  # here, where a reader that has gone is not a traceback at exit
    except PellucidError as error:
        _complain(f"{command.name}: {error}")
        return MISUSED if isinstance(error, ConfigError) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what is left
        return PIPE_CLOSED
    return code


def _complain(message: str) -> None:
    print(f"pellucid: {clean(message)}", file=sys.stderr)  # noqa: T201  (a command line tool)
