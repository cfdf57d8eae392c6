"""The `demo` subcommand: options, and checks of what it requires."""

from __future__ import annotations

from argparse import ArgumentTypeError
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid_commands.demo.durable import command as durable
from pellucid_commands.demo.repository import choose_repository
from pellucid_commands.demo.scores import command as scores
from pellucid_commands.view import command as view

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

NEEDED: Final = ("mcp", "mcp_server_git", "mcp_server_time")
LONGEST_PAUSE: Final = 24 * 3600


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid demo`."""
    parser.add_argument(
        "--repository",
        type=Path,
        metavar="PATH",
        help="git repository to ask about (default: the one around this folder, or a sample without git)",
    )
    parser.add_argument(
        "--model",
        metavar="HOST:NAME",
        help="ask a real model, such as openai:gpt-6-luna or ollama:qwen3 (default: a script without any key)",
    )
    parser.add_argument("--content", action="store_true", help="show the input and output of each span, too")
    parser.add_argument(
        "--otlp", metavar="URL", help="also send traces, metrics and logs there (http://localhost:4318)"
    )
    parser.add_argument("--port", type=int, metavar="N", help="port of /metrics (default: 9464, or any that is free)")
    afterwards = parser.add_mutually_exclusive_group()
    afterwards.add_argument(
        "--repeat",
        type=_pause,
        metavar="SECONDS",
        help="ask again after so many seconds, until Ctrl-C: for dashboards and alerts",
    )
    afterwards.add_argument("--serve", action="store_true", help="keep /metrics up afterwards, until Ctrl-C")
    afterwards.add_argument("--view", action="store_true", help="show the runs in a browser afterwards, until Ctrl-C")
    parser.add_argument("--no-color", action="store_true", help="plain text, without live display")
    others = parser.add_subparsers(title="other demos", metavar="[durable | scores]")
    durable.add_arguments(others.add_parser("durable", help=durable.HELP, description=f"{durable.HELP.capitalize()}."))
    scores.add_arguments(others.add_parser("scores", help=scores.HELP, description=f"{scores.HELP.capitalize()}."))


def _pause(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds <= LONGEST_PAUSE:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds from 0 to {LONGEST_PAUSE}")
    return seconds


def run(options: Namespace) -> int:
    """Run the demo and return the exit code.

    Raises:
        ConfigError: the demo cannot start; the message names the remedy.
    """
    if "show" in options:
        return int(options.show(options))
    for extra, needed in (("demo", NEEDED), ("view", view.NEEDED if options.view else ())):
        missing = [name for name in needed if find_spec(name) is None]
        if missing:
            raise ConfigError(f"{' and '.join(missing)} not installed; run: pip install 'pellucid[{extra}]'")
    from pellucid_commands.demo.session import show

    return show(options, choose_repository(options.repository))


COMMAND: Final = Command(
    name="demo",
    help="Run an agent on three real tool hubs, one of them slow and failing, and see all of it.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid demo",
        "pellucid demo --repository ~/src/project --content",
        "pellucid demo --otlp http://localhost:4318 --repeat 10",
        "pellucid demo --view",
        "pellucid demo durable --workers 2",
        "pellucid demo scores",
    ),
)
