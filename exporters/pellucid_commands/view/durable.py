"""Durable runs of `pellucid view --durable`."""

from __future__ import annotations

import getpass
import secrets
from typing import Final

import anyio

from pellucid.durable import DurableRuns, open_store
from pellucid.errors import ConfigError, StoreUnavailable
from pellucid_exporters.viewer.durable import Actions, DurablePages

MIN_TOKEN: Final = 16
"""Characters of a token, at least."""


def durable_pages(url: str, token: str | None) -> DurablePages:
    """Return the durable runs of a store, which is neither created nor migrated.

    Args:
        url: URL of the store.
        token: What lets readers act; None for a new token, and empty if nobody may.

    Raises:
        ConfigError: there is no store, or it needs a migration, or the token is too short.
    """
    store = open_store(url)
    try:
        schema = anyio.run(store.schema_state)
    except StoreUnavailable as error:
        raise ConfigError(f"{error}; check --durable") from error
    schema.check()
    actions = None
    if token != "":
        token = token or secrets.token_urlsafe()
        if len(token) < MIN_TOKEN:
            raise ConfigError(f"PELLUCID_VIEW_TOKEN has {len(token)} characters; use at least {MIN_TOKEN}")
        actions = Actions(token, getpass.getuser())
    return DurablePages(store, DurableRuns(store, [], stream="never"), actions)
