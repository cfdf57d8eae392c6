"""Listing of one provider's tools within one boundary, with checks that run once per catalogue."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
from opentelemetry.trace import SpanContext

from pellucid import semconv
from pellucid.concurrency.computing import compute
from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.race import OutOfTime, race, together
from pellucid.context import DiscoveryContext
from pellucid.errors import DiscoveryBackoff, DiscoveryError, DiscoveryTimeout
from pellucid.events import ToolsCatalogChanged, ToolsDiscoveryPending, ToolsHiddenText, ToolsQuarantined
from pellucid.failures import contained, describe
from pellucid.providers.provider import ProviderFacts, ToolProvider
from pellucid.telemetry import DISCOVERY, Boundary, Scope, boundary, once
from pellucid.tools.catalog import LARGE_CATALOG, ProviderCatalog, as_sequence, check_catalog
from pellucid.tools.catalog_cache import Remembered

if TYPE_CHECKING:
    from pellucid.telemetry.content import CapturedValue, Capturer
    from pellucid.telemetry.hub_requests import HubRequest


class Answers:
    """Answers of a provider, and the requests for them; its block is one request.

    Attributes:
        asked: Number of requests under way.
        is_outstanding: Whether a run has gone on without an answer since the last one.
        at: Time of the last answer, on the monotonic clock; not that of an old catalogue that was served in its place.
        tool_count: Number of tools in the last answer.
        error: Failure of the last request, if it failed.
    """

    __slots__ = ("__weakref__", "_lock", "asked", "at", "error", "is_outstanding", "tool_count")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.asked = 0
        self.is_outstanding = False
        self.at: float | None = None
        self.tool_count: int | None = None
        self.error: Exception | None = None
        reset_in_child(self, _lock=threading.Lock, asked=int, is_outstanding=bool)

    def __enter__(self) -> None:
        with self._lock:
            self.asked += 1

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with self._lock:
            self.asked -= 1
        # A refusal during the back-off says nothing new about the hub.
        if isinstance(error, Exception) and not (isinstance(error, DiscoveryBackoff) and self.error is not None):
            self.error = error

    def succeeded(self, tool_count: int) -> None:
        """Note an answer."""
        self.at, self.tool_count, self.error = time.monotonic(), tool_count, None
        self.is_outstanding = False


class Lister:
    """Listings of one provider, with a cache of the catalogues that were checked.

    Attributes:
        provider: The provider.
        facts: Optional attributes of the provider.
        answers: Latest answers of the provider.
        serves_stale: Whether a run goes on with its last catalogue if it cannot get another.
    """

    def __init__(self, provider: ToolProvider, *, serves_stale: bool = True) -> None:
        self.provider = provider
        self.serves_stale = serves_stale
        self.facts = ProviderFacts.of(provider)
        self._values, self._info = self.facts.values(), self.facts.info()
        self._lock = threading.Lock()
        reset_in_child(self, _lock=threading.Lock)
        self._latest: tuple[object, ProviderCatalog] | None = None
        self._checked: Remembered[tuple[object, ProviderCatalog]] = Remembered()
        self._digests: Remembered[tuple[str, str]] = Remembered()
        self._latest_digests: tuple[Hashable, tuple[str, str]] | None = None
        self._last_known: Remembered[tuple[ProviderCatalog, float]] = Remembered()
        self.answers = Answers()

    async def list(
        self, scope: Scope, ctx: DiscoveryContext, within: float | None, guard: Guard | None = None
    ) -> ProviderCatalog:
        """List the provider's tools within a `discover_tools` boundary, as often as the guard decides.

        Raises:
            DiscoveryError: the provider failed, took longer than `within` seconds, or did not return tools.
        """
        provider_id, facts = self.provider.id, self.facts
        with boundary(scope, DISCOVERY, provider_id, provider_id=provider_id, cache="none", **facts.notes()) as b:
            b.capture_input(lambda capturer: _record_request(capturer, ctx))

            def report(*, cache: str | None = None, link: SpanContext | None = None) -> None:
                if cache is not None:
                    b.note(cache=cache)
                if link is not None:
                    b.link(link)

            def requested(request: HubRequest) -> None:
                request.note(b)

            asking = ctx.reporting(report, b.attributes, within, requested)
            if self._values or self._info:
                hub = scope.instruments.hubs.of(provider_id)
                hub.values.update(self._values)
                hub.info = self._info
            attempt = partial(self._attempt, scope, b, asking, within)
            try:
                catalog = await (attempt() if guard is None else guard(self, b, asking, partial(attempt, is_kept=True)))
            except DiscoveryError as error:
                if not self.serves_stale:
                    raise
                from pellucid.providers.relisting import catalog_of_run

                own = None if guard is None else self.last_known(ctx) or (None, 0.0)
                catalog = catalog_of_run(scope, b, ctx, error, provider_id, own, self.answers.at)
            self._note(scope, b, asking, catalog)
            return catalog

    async def _attempt(
        self, scope: Scope, b: Boundary, ctx: DiscoveryContext, within: float | None, *, is_kept: bool = False
    ) -> ProviderCatalog:
        """Return the checked catalogue, and keep it for `last_known` on request."""
        if is_kept:  # reset the notes of an earlier attempt
            b.note(cache="none")
        if b.noted("has_failed"):
            ctx = ctx.reporting(ctx.report, ctx.describe, within, ctx.requested, is_retry=True)
        try:
            with self.answers:
                if self.facts.measures_requests:
                    catalog = await self.checked(await self._call(None, ctx, within))
                else:
                    with self._requesting(scope, b) as request:
                        catalog = await self.checked(await self._call(request, ctx, within))
        except DiscoveryError as error:
            error.joined = error.joined or b.noted("cache") == "joined"
            if not isinstance(error, DiscoveryBackoff):
                b.note(has_failed=True)
            raise
        if b.noted("cache") == "pending":
            self.answers.is_outstanding = True
        elif b.noted("cache") != "stale":
            self.answers.succeeded(len(catalog.tools))
        if is_kept:
            with self._lock:  # only the provider's own catalogue is kept, not the fallback of a rule
                last = self._last_known.get(audience_of(ctx))
                is_old = b.noted("cache") == "stale" and last is not None and last[0] is catalog
                if not is_old and not _is_missing(b, catalog):
                    self._last_known.put(audience_of(ctx), (catalog, time.monotonic()), len(catalog.tools))
        return catalog

    async def peek(self, ctx: DiscoveryContext, within: float | None) -> ProviderCatalog:
        """Return the provider's catalogue outside of a run, without a boundary and without keeping it.

        Raises:
            DiscoveryError: as for `list`.
        """
        # a provider of `observe` then adds nothing of its own
        unreported = ctx.reporting(_discard, _discard, within, _discard)
        return await self.checked(await self._call(None, unreported, within))

    def last_known(self, ctx: DiscoveryContext) -> tuple[ProviderCatalog, float] | None:
        """Return the last catalogue for this identity and these skills, and its time on the monotonic clock."""
        return self._last_known.get(audience_of(ctx))

    @contextmanager
    def _requesting(self, scope: Scope, b: Boundary) -> Iterator[HubRequest]:
        """Measure the block as a request to the hub.

        It is none if the provider reports a cached list, wraps a provider that measures itself, or is refused by a
        back-off.
        """
        from pellucid.telemetry.hub_requests import HubRequest

        request = HubRequest(scope, self.provider.id, self.facts.kind, self.facts.objective)
        others = b.noted("attempts")
        try:
            yield request
        except DiscoveryBackoff:
            request.discard()
            raise
        except DiscoveryError as error:
            if b.noted("attempts") != others:
                request.discard()
            request.end(error)
            raise
        except BaseException:
            request.end(is_abandoned=True)
            raise
        finally:
            if b.noted("cache") in ("none", "miss") and b.noted("attempts") == others:
                request.end()
            else:
                request.discard()
            request.note(b)

    async def _call(self, request: HubRequest | None, ctx: DiscoveryContext, within: float | None) -> object:
        timeout = within if self.facts.timeout is None else self.facts.timeout
        if self.facts.detached and self.facts.timeout is not None:
            timeout = None  # the provider applies its own timeout, and may serve an old list after it
        try:
            answer = self.provider.list_tools(ctx)
            if inspect.isawaitable(answer):
                return await self._receive(request, answer, timeout)
        except OutOfTime:
            raise DiscoveryTimeout(
                self.provider.id, f"no answer within {timeout:g} s; raise Limits.discovery_timeout if that is normal"
            ) from None
        except DiscoveryError:
            raise
        except BaseException as error:  # noqa: BLE001  (raised as a DiscoveryError)
            failure = contained(error)
            raise DiscoveryError(self.provider.id, describe(failure)) from failure
        if request is not None:
            request.answered()
        return answer

    async def _receive(self, request: HubRequest | None, answer: Awaitable[Any], within: float | None) -> object:
        async def receive() -> object:
            return await (answer if request is None else request.receive(answer))

        if self.facts.detached:
            if within is None:
                return await receive()
            with anyio.move_on_after(within):
                return await receive()
            raise OutOfTime
        try:
            listed = await race(receive, within=within)
        finally:
            if inspect.iscoroutine(answer) and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED:
                answer.close()  # cancelled before its first step
        if request is not None:
            request.resumed()
        return listed

    async def checked(self, answer: object) -> ProviderCatalog:
        """Return the checked catalogue of `answer` as `check` does; check many tools in a worker thread.

        Raises:
            InvalidCatalog: as for `check`.
        """
        listed = as_sequence(self.provider.id, answer)
        if (known := self._known(listed)) is not None:
            return known
        check = partial(self._check, tuple(listed))
        return check() if len(listed) < LARGE_CATALOG else await compute(check)

    def check(self, answer: object) -> ProviderCatalog:
        """Return the checked catalogue of `answer`; the same answer is checked only once.

        Raises:
            InvalidCatalog: the answer is not a list of tools with distinct names and valid schemas.
        """
        listed = as_sequence(self.provider.id, answer)
        return self._known(listed) or self._check(tuple(listed))

    def _known(self, listed: Sequence[Any]) -> ProviderCatalog | None:
        """Return the catalogue of an answer that was checked before, or None."""
        latest = self._latest
        if latest is not None and latest[0] is listed and type(listed) is tuple:
            return latest[1]
        if (entry := self._checked.get(tuple(map(id, listed)))) is None:
            return None
        self._latest = listed, entry[1]
        return entry[1]

    def _check(self, tools: tuple[Any, ...]) -> ProviderCatalog:
        if (known := self._known(tools)) is not None:
            return known  # checked while this caller waited for its turn
        catalog = self._catalog_of(tools)
        catalog.digest  # noqa: B018  (evaluated here because it takes a while)
        key = tuple(map(id, tools))
        # Keep a reference to the answer, so that its id and those of its tools are not reused.
        self._checked.put(key, (tools, catalog), len(tools))
        self._latest = tools, catalog
        return catalog

    def _catalog_of(self, tools: tuple[Any, ...]) -> ProviderCatalog:
        catalog = check_catalog(self.provider.id, tools, quarantine=self.facts.on_invalid == "quarantine")
        return catalog.of(self.facts.source)

    def _last_digests(self, audience: Hashable, digests: tuple[str, str]) -> tuple[str, str]:
        """Return the digests of an audience's last catalogue, in whose place these are kept."""
        if (audience, digests) == self._latest_digests:
            return digests
        self._latest_digests = audience, digests
        return self._digests.put(audience, digests) or digests

    def _note(self, scope: Scope, b: Boundary, ctx: DiscoveryContext, catalog: ProviderCatalog) -> None:
        provider_id, digest, count = catalog.provider_id, catalog.digest, len(catalog.tools)
        is_pending = b.noted("cache") == "pending"
        is_missing = is_pending and not count  # it is empty only because the hub has not answered yet
        # A hidden text that comes or goes is a change too, although the model gets the same tools.
        audience, digests = audience_of(ctx), (digest, catalog.listed_digest)
        previous = digests if is_missing else self._last_digests(audience, digests)
        changed = previous != digests
        b.note(tool_count=count, digest=digest, changed=changed)
        b.capture_output(once(catalog.captured, lambda capturer: capturer.value(catalog.summary)))
        if scope.catalog_sinks and b.records:
            from pellucid.tools.catalog_records import CatalogListing

            listing = CatalogListing(provider_id=provider_id, digest=digest, tools=catalog.tools, policy=scope.policy)
            for sink in scope.catalog_sinks:
                scope.guarded("recording", sink, listing)
        if scope.is_measured and not is_missing:
            scope.instruments.hubs.set(semconv.CATALOG_SIZE, provider_id, count)
        span = b.span.get_span_context()
        if is_pending:
            _note_pending(scope, b, catalog)
        if changed:
            scope.count(semconv.CATALOG_CHANGES, 1, {semconv.PROVIDER_ID: provider_id})
            payload = {"provider_id": provider_id, "tool_count": count, "digest": digest}
            scope.emit(ToolsCatalogChanged, span, {**payload, "previous_digest": previous[0]})
        for hidden in catalog.hidden:
            payload = {"tool_name": hidden.tool_name, "place": hidden.place, "text": scope.text(hidden.text)}
            scope.emit(ToolsHiddenText, span, {"provider_id": provider_id, **payload, "removed": hidden.removed})
        for name, problem in catalog.quarantined:
            scope.emit(ToolsQuarantined, span, {"provider_id": provider_id, "tool_name": name, "problem": problem})


Guard: TypeAlias = Callable[
    [Lister, Boundary, DiscoveryContext, Callable[[], Awaitable[ProviderCatalog]]], Awaitable[ProviderCatalog]
]
"""Decides how often a provider is called, and which catalogue is used."""


def _discard(*_: object, **__: object) -> None:
    """Discard what a provider reports, where there is no boundary."""


def _is_missing(b: Boundary, catalog: ProviderCatalog) -> bool:
    """Return whether the catalogue is empty only because the hub has not answered yet."""
    return b.noted("cache") == "pending" and not catalog.tools


def _note_pending(scope: Scope, b: Boundary, catalog: ProviderCatalog) -> None:
    """Mark a run that goes on without the answer of a hub as degraded."""
    provider_id = catalog.provider_id
    if provider_id not in scope.degraded:
        scope.degraded.append(provider_id)
    waited = (scope.now() - b.start) / 1e6
    payload = {"provider_id": provider_id, "duration_ms": waited, "tool_count": len(catalog.tools)}
    scope.emit(ToolsDiscoveryPending, b.span.get_span_context(), payload)


def audience_of(ctx: DiscoveryContext) -> Hashable:
    """Return the identity and skills that a provider lists tools for."""
    identity = ctx.identity
    return identity and (identity.tenant, identity.principal), ctx.active_skill_ids


async def list_all(
    listers: Sequence[Lister],
    scope: Scope,
    ctx: DiscoveryContext,
    *,
    within: float | None = None,
    skip_failed: bool = False,
    guard: Guard | None = None,
) -> list[ProviderCatalog]:
    """List the tools of several providers concurrently, and return their catalogues in order.

    The first failure cancels the others and is raised, unless `skip_failed`; then the run is marked as degraded.
    """
    if len(listers) == 1 and not skip_failed:
        return [await listers[0].list(scope, ctx, within, guard)]
    catalogs: list[ProviderCatalog | None] = [None] * len(listers)

    async def list_one(index: int, lister: Lister) -> None:
        try:
            catalogs[index] = await lister.list(scope, ctx, within, guard)
        except DiscoveryError as error:
            if not skip_failed:
                raise
            scope.degraded.append(error.provider_id)

    await together(partial(list_one, index, lister) for index, lister in enumerate(listers))
    return [catalog for catalog in catalogs if catalog is not None]


def _record_request(capturer: Capturer, ctx: DiscoveryContext) -> CapturedValue:
    """Record the input of a discovery; an identity is recorded as content."""
    request = {"iteration": ctx.iteration, "active_skill_ids": ctx.active_skill_ids, "identity": ctx.identity}
    return capturer.facts(request) if ctx.identity is None else capturer.value(request)
