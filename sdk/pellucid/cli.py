"""The `pellucid` command. Its subcommands come from the entry-point group `pellucid.commands`.

A package adds one by naming a `Command` in its metadata:

```toml
[project.entry-points."pellucid.commands"]
demo = "pellucid_commands.demo.command:COMMAND"
```
"""

from __future__ import annotations

import os
import shlex
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter, _SubParsersAction
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pellucid.errors import ConfigError, PellucidError
from pellucid.text import clean, excerpt, nearest
from pellucid.version import __version__

__all__ = ["GROUP", "Command", "main"]

GROUP: Final = "pellucid.commands"
"""The entry-point group of subcommands."""

SHELLS: Final = ("bash", "zsh", "fish")

_EXAMPLES: Final = (
    "pellucid demo",
    "pellucid runs --outcome failed",
    "pellucid doctor --otlp http://localhost:4318",
    "pellucid --print-completion bash > ~/.pellucid-completion.bash && . ~/.pellucid-completion.bash",
)

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
        examples: Command lines for `--help`. The help of a nested subcommand has those that begin with it.
    """

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]
    examples: Sequence[str] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand that `argv` names (the process's own arguments unless given) and return the exit code.

    Raises:
        SystemExit: the arguments are invalid (code 2), or are `--help` or `--version`.
    """
    given = sys.argv[1:] if argv is None else argv
    commands = _installed_commands(given[0] if given else None)
    parser = _parser(commands)
    names = [command.name for command in commands]
    if given and not given[0].startswith("-") and given[0] not in names:
        parser.error(f"there is no command {excerpt(given[0])!r}; {nearest(given[0], names)}")
    options = parser.parse_args(given)
    if options.print_completion is not None:
        return _run("--print-completion", partial(_print_completion, parser, options.print_completion))
    if options.command is None:
        parser.print_help(sys.stderr)
        return MISUSED
    return _run(options.command.name, partial(options.command.run, options))


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
    parser.add_argument("--version", action="version", version=f"pellucid {__version__}")
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        help="print a script that completes commands, options and files; needs pellucid[completion]",
    )
    parser.set_defaults(command=None)
    subparsers = parser.add_subparsers(title="commands", metavar="command")
    for command in commands:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        command.add_arguments(subparser)
        subparser.set_defaults(command=command)
        for each in _with_nested(subparser):
            _add_examples(each, command.examples)
    _add_examples(parser, _EXAMPLES)
    return parser


def _with_nested(parser: ArgumentParser) -> Iterator[ArgumentParser]:
    yield parser
    for action in parser._actions:  # noqa: SLF001  (argparse has no other list of what was added to it)
        if isinstance(action, _SubParsersAction):
            for nested in action.choices.values():
                yield from _with_nested(nested)


def _add_examples(parser: ArgumentParser, examples: Sequence[str]) -> None:
    """Append the examples that begin with the parser's own words to its help."""
    words = parser.prog.split()
    own = [example for example in examples if shlex.split(example)[: len(words)] == words]
    if own:
        parser.formatter_class = RawDescriptionHelpFormatter
        lines = "\n".join(f"  {example}" for example in own)
        parser.epilog = f"examples:\n{lines}".replace("%", "%%")


def _print_completion(parser: ArgumentParser, shell: str) -> int:
    """Print the completion script for a shell, and return the exit code.

    Raises:
        ConfigError: shtab is not installed.
    """
    if find_spec("shtab") is None:
        raise ConfigError("shtab is not installed; run: pip install 'pellucid[completion]'")
    import shtab

    for each in _with_nested(parser):
        for action in each._actions:  # noqa: SLF001  (likewise)
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # the attribute that shtab looks for
    print(shtab.complete(parser, shell))  # noqa: T201  (the output of the option)
    return 0


def _run(name: str, work: Callable[[], int]) -> int:
    try:
        code = work()
        sys.stdout.flush()  # here, so that a closed pipe is not a traceback at exit
    except PellucidError as error:
        _print_error(f"{name}: {error}")
        return MISUSED if isinstance(error, ConfigError) else FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes at exit
        return PIPE_CLOSED
    return code


def _print_error(message: str) -> None:
    print(f"pellucid: {clean(message)}", file=sys.stderr)  # noqa: T201  (a command line tool)
