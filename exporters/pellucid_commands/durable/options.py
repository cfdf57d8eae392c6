"""Options that the actions of `pellucid durable` share, and the store that they name."""

from __future__ import annotations

import json
import re
from argparse import ArgumentTypeError
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from pellucid.durable import DurableRuns
from pellucid.durable.store.values import is_storable
from pellucid_commands.serving.options import add_store_argument, check_existing, opened_store

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import AsyncIterator

    from pellucid.durable import RunStore

REFUSED: Final = 1
"""Exit code: nothing was found, or the store has refused."""

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw]?)", re.ASCII)


def add_shared(parser: ArgumentParser) -> None:
    """Declare `--store` and `--json`."""
    add_store_argument(parser)
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")


def duration(text: str) -> float:
    """Parse a time such as 90, 30s, 10m, 12h or 30d into seconds.

    Raises:
        ArgumentTypeError: it is none.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a time such as 90, 30s, 10m, 12h or 30d")
    return float(match[1]) * _UNITS[match[2]]


def identifier(text: str) -> str:
    """Return an id of the command line.

    Raises:
        ArgumentTypeError: no run or call has such a one.
    """
    if not text or not is_storable(text):
        raise ArgumentTypeError("an id has 1 to 255 printable characters")
    return text


def json_value(text: str) -> Any:
    """Return the value of JSON text.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        return json.loads(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not JSON; a text needs quotes: '\"…\"'") from None


@asynccontextmanager
async def opened(options: Namespace) -> AsyncIterator[tuple[RunStore, DurableRuns]]:
    """Open the store, without agents.

    Raises:
        ConfigError: there is no such file, or it cannot be opened.
    """
    check_existing(options.store)
    async with opened_store(options, None) as store:
        yield store, DurableRuns(store, [])
