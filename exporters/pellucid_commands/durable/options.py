"""Options that the actions of `pellucid durable` share, and the store that they name."""

from __future__ import annotations

import json
import os
from argparse import ArgumentTypeError
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from pellucid.durable import DurableRuns
from pellucid.durable.store.values import is_storable
from pellucid_commands.serving.options import (
    STORE,
    STORE_VARIABLE,
    add_store_argument,
    check_existing,
    opened_store,
    schema_of,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import AsyncIterator

    from pellucid.durable import RunStore

REFUSED: Final = 1
"""Exit code: nothing was found, or the store has refused."""
RUN_HELP: Final = "id of the run, or its first characters"


def add_shared(parser: ArgumentParser) -> None:
    """Declare `--store` and `--json`."""
    add_store_argument(parser)
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")


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


def store_hint(options: Namespace) -> tuple[str, ...]:
    """Return what to say after commands to copy, if they need the option that named the store."""
    is_default = options.store == os.environ.get(STORE_VARIABLE, STORE)
    return () if is_default else (f"give these commands --store, too, or set {STORE_VARIABLE}",)


@asynccontextmanager
async def opened(options: Namespace) -> AsyncIterator[tuple[RunStore, DurableRuns]]:
    """Open the store, without agents.

    Raises:
        ConfigError: there is no such store, it needs a migration, or it cannot be opened.
    """
    check_existing(options.store)
    (await schema_of(options.store)).check()
    async with opened_store(options, None) as store:
        yield store, DurableRuns(store, [])
