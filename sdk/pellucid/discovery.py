"""Phase 1: ask every provider once, at the same time, and take a snapshot."""

from __future__ import annotations

from pellucid.run import Run
from pellucid.tools.catalog import Catalog
from pellucid.tools.listing import list_all


async def discover(run: Run) -> Catalog:
    """Return the tools of this iteration.

    Raises:
        DiscoveryError: a provider failed; its own exception is the cause.
    """
    setup = run.setup
    parts = await list_all(setup.listers, run, run.discovery_context(), within=run.limits.discovery_timeout)
    return setup.catalogs.of(parts)
