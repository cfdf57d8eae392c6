"""Durable runs of `pellucid view --durable`."""

from __future__ import annotations

import anyio

from pellucid.durable import DurableRuns, open_store
from pellucid.errors import ConfigError, StoreUnavailable
from pellucid.text import shown_url
from pellucid_exporters.viewer.durable import Actions, DurablePages


def durable_pages(url: str, actions: Actions | None) -> DurablePages:
    """Return the durable runs of a store, which is neither created nor migrated.

    Args:
        url: URL of the store.
        actions: Actions of readers; None if nobody may do anything.

    Raises:
        ConfigError: there is no store, or it needs a migration.
    """
    store = open_store(url)
    try:
        schema = anyio.run(store.schema_state)
    except StoreUnavailable as error:
        raise ConfigError(f"{error}; check --durable") from error
    schema.check()
    return DurablePages(store, DurableRuns(store, [], stream="never"), actions, shown_url(url))
