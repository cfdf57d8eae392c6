"""Doing before the first run what it would wait for otherwise."""

from __future__ import annotations

from pellucid.context import DiscoveryContext, Identity
from pellucid.models.fallback import candidates
from pellucid.providers.listing import list_all
from pellucid.run.state import Setup
from pellucid.telemetry import Pipeline, Scope, enter_scope, leave_scope


async def warm_up(setup: Setup, pipeline: Pipeline | None, identity: Identity | None) -> None:
    """Ask every provider once, and let the models connect; each provider has its boundary, as in a run.

    Raises:
        DiscoveryError: a provider failed.
    """
    scope = Scope(agent=setup.name, identity=identity, pipeline=pipeline, listeners=(setup.listeners,))
    entered = enter_scope(scope)
    try:
        ctx = DiscoveryContext(identity=identity)
        await list_all(setup.listers, scope, ctx, within=setup.limits.discovery_timeout)
        for model in candidates(setup.model):
            warm = getattr(model, "warm_up", None)
            if warm is not None:
                await warm()
    finally:
        leave_scope(entered)
