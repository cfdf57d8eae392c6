"""Options of the commands that work on durable runs."""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.durable import (
    Callbacks,
    CallTokens,
    Completion,
    NATSQueue,
    open_store,
)
from pellucid.errors import ConfigError, StoreUnavailable
from pellucid_commands.serving.run_options import add_run_arguments
from pellucid_exporters import configure

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import AsyncIterator, Iterator

    from pellucid.durable import RunStore
    from pellucid.durable.store.schema_methods import SchemaState
    from pellucid.server.callers import Authenticate
    from pellucid_exporters import Telemetry
    from pellucid_exporters.options import Prometheus

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
FLUSH: Final = 5.0
"""Seconds for sending telemetry at the end."""
_SQLITE: Final = "sqlite:///"
_STORE_FILE: Final = "durable.db"
_FORMER_STORE: Final = "runs.db"
STORE: Final = f"sqlite:///{_STORE_FILE}"
STORE_VARIABLE: Final = "PELLUCID_STORE"
QUEUE_VARIABLE: Final = "PELLUCID_QUEUE"
KEYS_VARIABLE: Final = "PELLUCID_CALL_KEYS"
"""Variable with the keys of call tokens, with commas between; the first one signs."""
CALLBACK_KEYS_VARIABLE: Final = "PELLUCID_CALLBACK_KEYS"
"""Variable with the keys that sign callbacks, with commas between."""
CALLBACK_URLS_VARIABLE: Final = "PELLUCID_CALLBACK_URLS"
"""Variable with the URLs below which callbacks may be, with commas between."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options that these commands share."""
    parser.add_argument("agents", nargs="+", metavar="MODULE:NAME", help="agents, such as app.agents:support")
    add_store_argument(parser)
    parser.add_argument(
        "--queue",
        default=os.environ.get(QUEUE_VARIABLE),
        metavar="URL",
        help=f"nats://host:4222 wakes workers and streams events (default: ${QUEUE_VARIABLE}, or none)",
    )
    add_run_arguments(parser)
    parser.add_argument(
        "--public-url", metavar="URL", help="address of the server for outside workers, https://example.org/agents"
    )
    add_telemetry_arguments(parser)


def add_store_argument(parser: ArgumentParser) -> None:
    """Declare `--store`."""
    parser.add_argument(
        "--store",
        default=os.environ.get(STORE_VARIABLE, STORE),
        metavar="URL",
        help=f"sqlite:///path or postgresql://... (default: ${STORE_VARIABLE}, or {STORE})",
    )


def check_existing(store: str) -> None:
    """Check that a store is there, which opening would create.

    Raises:
        ConfigError: there is no such file.
    """
    path = store.removeprefix(_SQLITE)
    if path != store and not Path(path).exists():
        raise ConfigError(f"there is no store {path!r}; check --store")


def add_telemetry_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `telemetry_of`."""
    parser.add_argument("--service", default="pellucid", metavar="NAME", help="service.name (default: pellucid)")
    parser.add_argument(
        "--local", metavar="PATH", help="also write to this local store, for `pellucid runs`, `show` and `view`"
    )


def tokens_of_environment() -> CallTokens | None:
    """Return the maker of call tokens, or None without keys.

    Raises:
        ConfigError: a key is too short.
    """
    keys = listed(os.environ.get(KEYS_VARIABLE, ""))
    return CallTokens(*keys) if keys else None


def callbacks_of_environment() -> Callbacks | None:
    """Return how states are delivered to callback URLs, or None without keys.

    Raises:
        ConfigError: a key or a URL has another form, or one of the two variables is missing.
    """
    keys, urls = (listed(os.environ.get(name, "")) for name in (CALLBACK_KEYS_VARIABLE, CALLBACK_URLS_VARIABLE))
    if bool(keys) != bool(urls):
        raise ConfigError(
            f"callbacks need both {CALLBACK_KEYS_VARIABLE} and {CALLBACK_URLS_VARIABLE}; set them, or none"
        )
    return Callbacks(keys, urls) if keys else None


def listed(text: str) -> list[str]:
    """Return the items of a text with commas between."""
    return [item.strip() for item in text.split(",") if item.strip()]


def completion_of(options: Namespace, tokens: CallTokens | None) -> Completion | None:
    """Return where outside workers return results, or None.

    Raises:
        ConfigError: there is an address without keys.
    """
    if options.public_url is None:
        return None
    if tokens is None:
        raise ConfigError(f"--public-url needs keys for the tokens of calls; set {KEYS_VARIABLE}")
    return Completion(options.public_url, tokens)


def check_store(options: Namespace) -> None:
    """Check that the default store is not a new one beside the former default.

    Raises:
        ConfigError: it would be.
    """
    if options.store == STORE and Path(_FORMER_STORE).exists() and not Path(_STORE_FILE).exists():
        raise ConfigError(
            f"{_FORMER_STORE} is here, which was the default store before {_STORE_FILE}; continue its runs with "
            f"--store sqlite:///{_FORMER_STORE}, or name another store"
        )


def queue_of(options: Namespace) -> NATSQueue | None:
    """Return the queue, if there is to be one; it is not open.

    Raises:
        ConfigError: its URL is invalid, or nats-py is not installed.
    """
    return NATSQueue(options.queue) if options.queue else None


@asynccontextmanager
async def opened_store(options: Namespace, queue: NATSQueue | None) -> AsyncIterator[RunStore]:
    """Open the store, and the queue if there is one.

    Raises:
        ConfigError: the store cannot be opened; the message has the database's reason.
    """
    async with AsyncExitStack() as stack:
        with _reached():
            store = await stack.enter_async_context(open_store(options.store))
        if queue is not None:
            await stack.enter_async_context(queue)
        yield store


async def schema_of(url: str) -> SchemaState:
    """Return the schema of a store, which is neither created nor changed.

    Raises:
        ConfigError: as of `opened_store`.
    """
    with _reached():
        return await open_store(url).schema_state()


@contextmanager
def _reached() -> Iterator[None]:
    """Say why a store could not be reached, and what to check."""
    try:
        yield
    except StoreUnavailable as error:
        reason = " ".join(str(error.__cause__ or "").split())
        raise ConfigError(f"{error}{f' ({reason})' if reason else ''}; check --store") from error


def log_to_stderr() -> None:
    """Show warnings and errors of the process, unless the agents' modules have set up logging."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)


def cannot_listen(options: Namespace) -> ConfigError:
    """Return the error of a server that cannot listen."""
    return ConfigError(f"cannot listen on {options.host}, port {options.port}; the line above says why")


def authentication(host: str) -> Authenticate:
    """Return what authenticates callers: the bearer token of the environment, or without one that they are local.

    Raises:
        ConfigError: there is no token, and others than this machine may reach `host`.
    """
    from pellucid.server import bearer, loopback_only
    from pellucid.server.callers import TOKEN_VARIABLE

    if os.environ.get(TOKEN_VARIABLE):
        return bearer()
    if host not in LOOPBACK:
        raise ConfigError(
            f"without a bearer token the server is for this machine only, not for {host}; set {TOKEN_VARIABLE}"
        )
    return loopback_only


def telemetry_of(options: Namespace, prometheus: Prometheus) -> Telemetry:
    """Configure telemetry from the environment, the local store, and `/metrics`."""
    return configure(os.environ.get("OTEL_SERVICE_NAME", options.service), prometheus=prometheus, local=options.local)
