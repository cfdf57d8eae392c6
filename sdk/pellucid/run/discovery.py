"""Phase 1: list the tools of every provider once, concurrently, and take a snapshot."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from pellucid.context import DiscoveryContext
from pellucid.events import ToolsCatalogStale, ToolsDiscoveryFailed
from pellucid.providers.listing import Lister, list_all
from pellucid.run.rules import gate_of
from pellucid.run.state import Run
from pellucid.telemetry import Boundary
from pellucid.tools.catalog import Catalog, ProviderCatalog

if TYPE_CHECKING:
    from pellucid.reliability import Reaction, Reliability, Situation


async def discover(run: Run) -> Catalog:
    """Return the catalogue of this iteration.

    Raises:
        DiscoveryError: a provider failed; its own exception is the cause.
        ReliabilityFailFast: a reliability rule ended the run.
    """
    setup, scope, ctx = run.setup, run.scope, _context_of(run)
    guard = partial(_guarded, run, setup.reliability) if setup.reliability is not None else None
    scope.listed = ctx, await list_all(setup.listers, scope, ctx, within=run.limits.discovery_timeout, guard=guard)
    return await setup.catalogs.merged(scope.listed[1])


def _context_of(run: Run) -> DiscoveryContext:
    """Return the providers' context for this iteration."""
    active = run.conversation.active_skills()
    return DiscoveryContext(
        iteration=run.scope.iteration,
        active_skill_id=active[-1] if active else None,
        active_skill_ids=active,
        identity=run.scope.identity,
        signal=run.caller.signal,
        expires_at=run.scope.expires_at,
        notify=lambda notice: run.notices.update({notice: None}),
    )


async def _guarded(
    run: Run,
    reliability: Reliability,
    lister: Lister,
    b: Boundary,
    ctx: DiscoveryContext,
    ask: Callable[[], Awaitable[ProviderCatalog]],
) -> ProviderCatalog:
    """List a provider's tools under the reliability rules, with all attempts in one boundary."""
    from pellucid.reliability import Subject, last_known_catalog

    def obstacle(reaction: Reaction, error: BaseException | None) -> str | None:
        if reaction.then == "retry_other":
            return "no_other"
        return "nothing_known" if reaction.value is last_known_catalog and lister.last_known(ctx) is None else None

    gate = gate_of(run, reliability, Subject("discovery", lister.provider.id), obstacle, b)

    async def fall_back(reaction: Reaction, situation: Situation) -> ProviderCatalog:
        if reaction.value is last_known_catalog:
            return _last_known(run, b, lister, ctx, situation)
        return lister.check(await reaction.result(situation))

    return await gate.run(partial(gate.run_attempt, b, ToolsDiscoveryFailed, ask), fall_back=fall_back)


def _last_known(run: Run, b: Boundary, lister: Lister, ctx: DiscoveryContext, situation: Situation) -> ProviderCatalog:
    """Return the provider's last known catalogue, and report it as stale."""
    last_known, error = lister.last_known(ctx), situation.error
    assert last_known is not None  # otherwise the gate does not fall back
    catalog, listed_at = last_known
    b.note(cache="stale")
    payload = {
        "provider_id": lister.provider.id,
        "seconds_over": time.monotonic() - listed_at,
        **run.scope.error_facts(error),
    }
    run.scope.emit(ToolsCatalogStale, b.span.get_span_context(), payload)
    return catalog
