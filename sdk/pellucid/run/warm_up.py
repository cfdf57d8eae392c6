"""Warm-up: connect and fetch before the first run, so that it does not wait."""

from __future__ import annotations

from pellucid.context import UNLIMITED, DiscoveryContext, Identity
from pellucid.models.fallback import candidates
from pellucid.providers.listing import list_all
from pellucid.run.state import Configuration
from pellucid.telemetry import Scope, enter_scope, leave_scope


async def warm_up(configuration: Configuration, identity: Identity | None) -> None:
    """List the tools of every provider once, each in its boundary as in a run, and let the models connect.

    Raises:
        DiscoveryError: a provider failed.
    """
    setup = configuration.setup
    scope = Scope(agent=setup.name, identity=identity, pipeline=configuration.pipeline, listeners=(setup.listeners,))
    scope_token = enter_scope(scope)
    try:
        ctx = DiscoveryContext(identity=identity, patience=UNLIMITED)
        await list_all(setup.listers, scope, ctx, within=setup.limits.discovery_timeout)
        for model in candidates(setup.model):
            warm_model = getattr(model, "warm_up", None)
            if warm_model is not None:
                await warm_model()
    finally:
        leave_scope(scope_token)
