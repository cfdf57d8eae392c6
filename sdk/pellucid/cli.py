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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import pellucid
from pellucid.errors import ConfigError, PellucidError
from pellucid.text import clean

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
        name: Name on the command line, after `pellucid`.
        help: One line for `pellucid --help`.
        add_arguments: Function that declares the subcommand's options.
        run: Function that runs the subcommand with the parsed options and returns the exit code. A `ConfigError`
            becomes a message and exit code 2, any other `PellucidError` a message and 1, an interrupt 130.
    """

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that `argv` names (the process's own arguments unless given) and return the exit code.

    Raises:
        SystemExit: the arguments are invalid (code 2), or are `--help` or `--version`.
    """
    given = sys.argv[1:] if argv is None else argv
    parser = _parser(_installed_commands(given[0] if given else None))
    options = parser.parse_args(given)
    if options.command is None:
        parser.print_help(sys.stderr)
        return MISUSED
    return _run(options.command, options)


def _installed_commands(wanted: str | None) -> list[Command]:
    """Load the subcommands. A broken one is reported, and the others still work.

    Of the package that has the subcommand `wanted`, no other one is loaded: that takes time and memory.
    """
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    package = next((_package(point) for point in points if point.name == wanted), None)
    commands: dict[str, list[tuple[EntryPoint, Command]]] = {}
    for point in points:
        if package is not None and _package(point) == package and point.name != wanted:
            continue
        try:
            command = point.load()
        except Exception as error:  # noqa: BLE001  (another package's module may fail in any way)
            _print_error(f"subcommand {point.name!r} cannot be loaded from {point.value}: {error}")
            continue
        if isinstance(command, Command):
            commands.setdefault(command.name, []).append((point, command))
        else:
            _print_error(f"subcommand {point.name!r}: {point.value} is not a pellucid.cli.Command")
    for name, declared in commands.items():
        if len(declared) > 1:
            values = sorted((_package(point) or "unknown", point.value) for point, _ in declared)
            sources = " and ".join(f"{package} ({value})" for package, value in values)
            remedy = "uninstall the package that you do not need: pip uninstall NAME"
            _print_error(f"subcommand {name!r} is declared more than once, by {sources}; {remedy}")
    return [declared[0][1] for declared in commands.values() if len(declared) == 1]


def _package(point: EntryPoint) -> str | None:
    return point.dist.name if point.dist is not None else None


def _parser(commands: Sequence[Command]) -> ArgumentParser:
    parser = ArgumentParser(
        prog="pellucid", description="See through your agents: run them, look at them, and alert on them."
    )
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
        sys.stdout.flush()  # here, so that a closed pipe is not a traceback at exit
    except PellucidError as error:
        _print_error(f"{command.name}: {error}")
        return MISUSED if isinstance(error, ConfigError) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes at exit
        return PIPE_CLOSED
    return code


def _print_error(message: str) -> None:
    print(f"pellucid: {clean(message)}", file=sys.stderr)  # noqa: T201  (a command line tool)
