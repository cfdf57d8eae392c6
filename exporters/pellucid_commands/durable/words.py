"""Words that the actions of `pellucid durable` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid_commands.durable.options import REFUSED
from pellucid_commands.inspection.output import say, say_json
from pellucid_exporters.stored import text

if TYPE_CHECKING:
    from argparse import Namespace

_NANO: Final = 1_000_000_000


def no_run(options: Namespace) -> int:
    """Say that there is no such run, and return the exit code."""
    if options.json:
        say_json({"error": "run not found"})
    else:
        say(f"the store has no run {options.run}; see: pellucid durable list")
    return REFUSED


def error(kind: str | None, message: str | None) -> str:
    """Return an error with its type."""
    return f"{kind}: {message}" if kind and message else message or kind or ""


def clock(seconds: float) -> str:
    """Return a time, with its date unless it is today."""
    return text.clock(int(seconds * _NANO))


def since(moment: float | None, now: float) -> str:
    """Return a time of the past, with how long ago it was."""
    return "?" if moment is None else f"{clock(moment)} ({text.seconds(max(now - moment, 0.0))} ago)"


def until(moment: float | None, now: float) -> str:
    """Return a time, with the distance from now."""
    if moment is None:
        return "?"
    distance = text.seconds(abs(moment - now))
    return f"{clock(moment)} ({f'in {distance}' if moment > now else f'{distance} ago'})"
