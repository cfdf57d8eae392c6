"""Asking one provider for its tools, as one boundary; and checking what it answers, once per catalogue."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
from opentelemetry.trace import SpanContext

from pellucid import semconv
from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.race import OutOfTime, race, together
from pellucid.context import DiscoveryContext
from pellucid.errors import DiscoveryError, DiscoveryTimeout
from pellucid.events import ToolsCatalogChanged, ToolsQuarantined
from pellucid.failures import contained, describe
from pellucid.providers.provider import ProviderFacts, ToolProvider
from pellucid.telemetry import DISCOVERY, Boundary, Recorded, Scope, boundary, current_scope, once
from pellucid.telemetry.recording import Recorder
from pellucid.tools.catalog import ProviderCatalog, as_sequence, check_catalog
from pellucid.tools.catalog_cache import Remembered

_ROUND_TRIPS: Final = ("none", "miss")


class Lister:
    """Asks one provider, and remembers what was checked already.

    Attributes:
        provider: The provider.
        facts: Its optional attributes.
    """

    __slots__ = ("__weakref__", "_checked", "_digests", "_known", "_latest", "_lock", "facts", "provider")

    def __init__(self, provider: ToolProvider) -> None:
        self.provider = provider
        self.facts = ProviderFacts.of(provider)
        self._lock = threading.Lock()
        reset_in_child(self, _lock=threading.Lock)
        self._latest: tuple[object, ProviderCatalog] | None = None
        self._checked: Remembered[tuple[object, ProviderCatalog]] = Remembered()
        self._digests: Remembered[str] = Remembered()
        self._known: Remembered[tuple[ProviderCatalog, float]] = Remembered()

    async def list(
        self, scope: Scope, ctx: DiscoveryContext, within: float | None, guard: Guard | None = None
    ) -> ProviderCatalog:
        """Ask the provider within a `discover_tools` boundary, as often as the guard wants.

        Raises:
            DiscoveryError: it failed, took longer than `within` seconds, or answered something else than tools.
        """
        provider_id, facts = self.provider.id, self.facts
        with boundary(
            scope,
            DISCOVERY,
            provider_id,
            provider_id=provider_id,
            provider_kind=facts.kind,
            server_address=facts.server_address,
            server_port=facts.server_port,
            cache="none",
            objective=facts.objective,
        ) as b:
            b.record_input(lambda recorder: _record_asked(recorder, ctx))
            ctx = ctx.reporting(_Report(b), b.attributes, within)
            scope.instruments.hubs.declare(provider_id, facts.objective)
            if guard is None:
                catalog = await self._checked_answer(scope, b, ctx, within)
            else:
                asked = ctx
                catalog = await guard(self, b, ctx, lambda: self._known_answer(scope, b, asked, within))
            self._note(scope, b, ctx, catalog)
            return catalog

    async def _checked_answer(
        self, scope: Scope, b: Boundary, ctx: DiscoveryContext, within: float | None
    ) -> ProviderCatalog:
        try:
            return self.check(await self._ask(scope, b, ctx, within))
        except DiscoveryError as error:
            error.joined = error.joined or b.noted("cache") == "joined"
            raise

    async def _known_answer(
        self, scope: Scope, b: Boundary, ctx: DiscoveryContext, within: float | None
    ) -> ProviderCatalog:
        """Return the answer, and remember it for `last_known`."""
        b.note(cache="none")  # what an attempt before this one said is not this one's
        catalog = await self._checked_answer(scope, b, ctx, within)
        with self._lock:  # what a rule puts in its place is not the provider's
            known = self._known.get(_audience(ctx))
            if known is None or known[0] is not catalog or b.noted("cache") != "stale":
                self._known.put(_audience(ctx), (catalog, time.monotonic()), len(catalog.tools))
        return catalog

    async def peek(self, ctx: DiscoveryContext, within: float | None) -> ProviderCatalog:
        """Return what the provider lists, outside of a run: without a boundary, and as if it had not been asked.

        Raises:
            DiscoveryError: as for `list`.
        """
        return self.check(await self._ask(current_scope(), None, replace(ctx, timeout=within), within))

    def last_known(self, ctx: DiscoveryContext) -> tuple[ProviderCatalog, float] | None:
        """Return what the provider listed last for this identity and these skills, and when by the monotonic clock."""
        return self._known.get(_audience(ctx))

    async def _ask(self, scope: Scope, b: Boundary | None, ctx: DiscoveryContext, within: float | None) -> object:
        timeout = within if self.facts.timeout is None else self.facts.timeout
        if self.facts.detached and self.facts.timeout is not None:
            timeout = None  # it keeps its own time, and may have an old list to serve when that is over
        try:
            answer = self.provider.list_tools(ctx)
            return await self._answer(scope, b, answer, timeout) if inspect.isawaitable(answer) else answer
        except OutOfTime:
            raise DiscoveryTimeout(
                self.provider.id, f"no answer within {timeout:g} s; raise Limits.discovery_timeout if that is normal"
            ) from None
        except DiscoveryError:
            raise
        except BaseException as error:  # noqa: BLE001  (raised as what it means to the run)
            failure = contained(error)
            raise DiscoveryError(self.provider.id, describe(failure)) from failure

    async def _answer(self, scope: Scope, b: Boundary | None, answer: Awaitable[Any], within: float | None) -> object:
        if self.facts.detached:
            with anyio.move_on_after(within):
                return await answer
            raise OutOfTime
        hubs = scope.instruments.hubs
        try:
            with hubs.fetching(self.provider.id):
                answered = await race(_await, answer, within=within)
        finally:
            if inspect.iscoroutine(answer) and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED:
                answer.close()  # cancelled before its first step
        if b is None or b.noted("cache") in _ROUND_TRIPS:  # what it had in a cache says nothing of the hub
            hubs.succeeded(self.provider.id)
        return answered

    def check(self, answer: object) -> ProviderCatalog:
        """Return the catalogue in `answer`; the same answer a second time costs nothing.

        Raises:
            InvalidCatalog: it is not a list of tools with distinct names and good schemas.
        """
        listed = as_sequence(self.provider.id, answer)
        latest = self._latest
        if latest is not None and latest[0] is listed and type(listed) is tuple:
            return latest[1]
        key = tuple(map(id, listed))
        if (found := self._checked.get(key)) is not None:
            self._latest = listed, found[1]
            return found[1]
        kept = tuple(listed)
        catalog = check_catalog(self.provider.id, kept, quarantine=self.facts.on_invalid == "quarantine")
        catalog = catalog.of(self.facts.source)
        # Keeping the answer keeps its identity, and its tools', from being given to something else.
        self._checked.put(key, (kept, catalog), len(kept))
        self._latest = kept, catalog
        return catalog

    def _note(self, scope: Scope, b: Boundary, ctx: DiscoveryContext, catalog: ProviderCatalog) -> None:
        provider_id, digest, count = catalog.provider_id, catalog.digest, len(catalog.tools)
        previous = self._digests.put(_audience(ctx), digest)
        changed = previous is not None and previous != digest
        b.note(tool_count=count, digest=digest, changed=changed)
        b.record_output(once(catalog.recorded, lambda recorder: recorder.value(catalog.summary)))
        scope.instruments.hubs.sized(provider_id, count)
        span = b.span.get_span_context()
        if changed:
            scope.count(semconv.CATALOG_CHANGES, 1, {semconv.PROVIDER_ID: provider_id})
            scope.emit(
                ToolsCatalogChanged,
                span,
                {"provider_id": provider_id, "tool_count": count, "digest": digest, "previous_digest": previous},
            )
        for name, problem in catalog.quarantined:
            scope.emit(ToolsQuarantined, span, {"provider_id": provider_id, "tool_name": name, "problem": problem})


Guard: TypeAlias = Callable[
    [Lister, Boundary, DiscoveryContext, Callable[[], Awaitable[ProviderCatalog]]], Awaitable[ProviderCatalog]
]
"""Decides how often a provider is asked, and what stands for its answer."""


def _audience(ctx: DiscoveryContext) -> Hashable:
    """Return for whom a provider lists tools."""
    identity = ctx.identity
    return identity and (identity.tenant, identity.principal), ctx.active_skill_ids


class _Report:
    """Takes a provider's report of where its list came from to the boundary."""

    __slots__ = ("_boundary",)

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary

    def __call__(self, *, cache: str | None = None, link: SpanContext | None = None) -> None:
        if cache is not None:
            self._boundary.note(cache=cache)
        if link is not None:
            self._boundary.link(link)


async def _await(answer: Awaitable[Any]) -> Any:
    return await answer


async def list_all(
    listers: Sequence[Lister],
    scope: Scope,
    ctx: DiscoveryContext,
    *,
    within: float | None = None,
    skip_failed: bool = False,
    guard: Guard | None = None,
) -> list[ProviderCatalog]:
    """Ask several providers at the same time and return their catalogues in order.

    The first failure cancels the others and is raised, unless `skip_failed`; then the run is noted as degraded.
    """
    if len(listers) == 1 and not skip_failed:
        return [await listers[0].list(scope, ctx, within, guard)]
    found: list[ProviderCatalog | None] = [None] * len(listers)

    async def ask(index: int, lister: Lister) -> None:
        try:
            found[index] = await lister.list(scope, ctx, within, guard)
        except DiscoveryError as error:
            if not skip_failed:
                raise
            scope.degraded.append(error.provider_id)

    await together(partial(ask, index, lister) for index, lister in enumerate(listers))
    return [catalog for catalog in found if catalog is not None]


def _record_asked(recorder: Recorder, ctx: DiscoveryContext) -> Recorded:
    """Record the input of a discovery; an identity is content like any other."""
    asked = {"iteration": ctx.iteration, "active_skill_ids": ctx.active_skill_ids, "identity": ctx.identity}
    return recorder.facts(asked) if ctx.identity is None else recorder.value(asked)
