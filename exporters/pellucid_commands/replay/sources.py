"""Sources of the commands that replay: a tape, and the agent that it belongs to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid_commands.inspection.options import RUN
from pellucid_commands.serving.agents import load_agents
from pellucid_exporters.local.options import DEFAULT_PATH
from pellucid_replay import Tape

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid import Agent
    from pellucid_replay import TapedSpan


def add_source_options(parser: ArgumentParser) -> None:
    """Declare `RUN`, `--store` and `--agent`."""
    parser.add_argument("run", metavar="RUN", help=f"{RUN}; or the file of a tape")
    parser.add_argument(
        "--store",
        type=Path,
        default=Path(DEFAULT_PATH),
        metavar="PATH",
        help=f"the store, or a file of configure(file=...) (default: {DEFAULT_PATH})",
    )
    parser.add_argument(
        "--agent",
        metavar="MODULE:NAME",
        help="the agent, such as app.agents:support (default: one built from the recording)",
    )


def tape_of(options: Namespace) -> Tape:
    """Return the tape that a user names.

    Raises:
        TapeError: there is none.
    """
    path = Path(options.run)
    return Tape.load(path) if path.is_file() else Tape.load(options.store, options.run)


def agent_of(place: str | None, tape: Tape) -> Agent[Any, Any] | None:
    """Return the agent at a place, or None without one; among several, the one with the recorded name.

    Raises:
        ConfigError: there is none.
    """
    if place is None:
        return None
    agents = load_agents([place])
    if len(agents) == 1:
        return agents[0]
    name = agent_name(tape)
    found = next((agent for agent in agents if agent.name == name), None)
    if found is None:
        raise ConfigError(f"--agent {place}: none of its agents is {name!r}, whose run this is; name another list")
    return found


def root_of(tape: Tape) -> TapedSpan:
    """Return the span of the run itself."""
    return next(span for span in tape.spans if span.run_id == tape.run_id and span.phase == semconv.RUN)


def agent_name(tape: Tape) -> str:
    """Return the name of the agent whose run was recorded."""
    return str(root_of(tape).get(semconv.AGENT_NAME))
