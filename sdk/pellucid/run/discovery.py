"""Phase 1: ask every provider once, at the same time, and take a snapshot."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

from pellucid.context import DiscoveryContext
from pellucid.events import ToolsCatalogStale, ToolsDiscoveryFailed
from pellucid.failures import error_type_of
from pellucid.providers.listing import Lister, list_all
from pellucid.reliability import Decision, Gate, Reliability, Situation, Subject, last_known_catalog
from pellucid.run.state import Run
from pellucid.telemetry import Boundary
from pellucid.tools.catalog import Catalog, ProviderCatalog


async def discover(run: Run) -> Catalog:
    """Return the tools of this iteration.

    Raises:
        DiscoveryError: a provider failed; its own exception is the cause.
        ReliabilityFailFast: a reliability rule ended the run.
    """
    setup = run.setup
    guard = partial(_guarded, run, setup.reliability) if setup.reliability is not None else None
    within = run.limits.discovery_timeout
    parts = await list_all(setup.listers, run.scope, run.discovery_context(), within=within, guard=guard)
    return setup.catalogs.of(parts)


async def _guarded(
    run: Run,
    reliability: Reliability,
    lister: Lister,
    b: Boundary,
    ctx: DiscoveryContext,
    ask: Callable[[], Awaitable[ProviderCatalog]],
) -> ProviderCatalog:
    """Ask a provider as often as the rules want, all within its one boundary."""

    def bar(decision: Decision, error: BaseException | None) -> str | None:
        if decision.then == "retry_other":
            return "no_other"
        return "nothing_known" if decision.value is last_known_catalog and lister.last_known(ctx) is None else None

    subject = Subject(operation="discovery", provider_id=lister.provider.id)
    gate = Gate(reliability, run.scope, subject, usage=lambda: run.spent, over=run.over, bar=bar)

    async def attempt() -> ProviderCatalog:
        began = run.scope.now()
        try:
            return await gate.run_attempt(b.span, ask)
        except Exception as error:
            if gate.decision is not None and gate.decision[0].then != "fail_fast":
                _tell(run, b, began, lister, error)
            raise

    async def instead(decision: Decision, situation: Situation) -> ProviderCatalog:
        if decision.value is last_known_catalog:
            return _last_known(run, b, lister, ctx, situation)
        return lister.check(await decision.result(situation))

    try:
        return await gate.run(attempt, instead=instead)
    finally:
        if gate.attempt > 1:
            b.note(attempts=gate.attempt)


def _tell(run: Run, b: Boundary, began: int, lister: Lister, error: Exception) -> None:
    """Tell of an attempt that failed although the discovery goes on."""
    error_type = error_type_of(error)
    payload = {
        "provider_id": lister.provider.id,
        "duration_ms": (run.scope.now() - began) / 1e6,
        "cache": b.noted("cache"),
        "outcome": "timeout" if error_type == "timeout" else "failed",
        "error": run.scope.text_of(error),
        "error_type": error_type,
    }
    run.scope.emit(ToolsDiscoveryFailed, b.span.get_span_context(), payload)


def _last_known(run: Run, b: Boundary, lister: Lister, ctx: DiscoveryContext, situation: Situation) -> ProviderCatalog:
    """Return what the provider listed last, visibly stale."""
    known, error = lister.last_known(ctx), situation.error
    assert known is not None  # the gate was told
    catalog, when = known
    b.note(cache="stale")
    payload = {
        "provider_id": lister.provider.id,
        "seconds_over": time.monotonic() - when,
        "error": run.scope.text_of(error) if error is not None else None,
        "error_type": error_type_of(error) if error is not None else None,
    }
    run.scope.emit(ToolsCatalogStale, b.span.get_span_context(), payload)
    return catalog
