"""Tool provider for a remote hub, with a cache and one fetch per key at a time, both visible in telemetry."""

from __future__ import annotations

import inspect
import random
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final, Generic, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanContext

from pellucid import semconv
from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.race import OutOfTime
from pellucid.concurrency.single_flight import Abandoned
from pellucid.context import DiscoveryContext, Patience
from pellucid.errors import DiscoveryBackoff, DiscoveryError, DiscoveryTimeout, InvalidCatalog
from pellucid.events import ToolsCatalogStale
from pellucid.failures import describe, retry_after_of
from pellucid.providers.fetches import Fetch, LateFailure, notify, patience_of
from pellucid.providers.option_checks import check_options
from pellucid.providers.provider import HubCatalog, OnInvalid, ToolHub, Tools, close
from pellucid.telemetry import BACKGROUND_DISCOVERY, Entered, HubRequest, Scope, boundary, current_scope
from pellucid.tools.catalog import as_sequence, checked_catalog
from pellucid.tools.tool import Hub, Tool, ToolSource
from pellucid.types import DepsT_contra

FIRST_BACKOFF: Final = 0.5
"""Seconds that a hub is left alone after its first failure; doubled with each further one."""

LONGEST_BACKOFF: Final = 30.0
"""Maximum seconds that a hub is left alone, also if it requests more by `Retry-After`."""

JITTER: Final = 0.1
"""Maximum share by which the lifetime of an entry is shortened, so that entries do not all expire at once."""

LINGER: Final = 5.0
"""Seconds after its start in which a fetch goes on although no caller waits for it; longer if the objective is."""

NOTICE: Final = "Tools of {id!r} may be missing at first: it is slow to list them. They are added when it does."
"""Sentence for the model. It stays true when the tools are there: other instructions would miss the prompt cache."""


class _Entry(NamedTuple):
    """Cached catalogue.

    Attributes:
        tools: The tools.
        expires: Time at which the entry expires, on the provider's clock.
        is_outdated: Whether the hub has announced since that its tools changed.
    """

    tools: Tools
    expires: float
    is_outdated: bool = False


class _Failure(NamedTuple):
    error: BaseException
    number: int
    until: float


@dataclass(eq=False, repr=False)
class DiscoveryProvider(Generic[DepsT_contra]):
    """Tools of a hub, listed with a cache.

    One fetch per key is in flight at a time, shared by all runs, event loops and threads. Each caller waits with its
    own cancellation. A fetch that no caller waits for any longer goes on until 5 s after its start, or as long as the
    objective if that is longer, so that it shows how slow the hub is. Failures are not cached, but after a failure the
    provider backs off from the hub (0.5 s, doubled up to 30 s with each further failure), except for retries by
    reliability rules.

    Args:
        hub: Hub that the catalogue is fetched from.
        id: Value of `pellucid.provider.id`.
        ttl: Seconds for which a catalogue is fresh after its arrival.
        key: Returns the cache key of a caller; callers with equal keys share a catalogue. The tenant by default.
        objective: Latency objective of a round trip in seconds; exported for alerts.
        slo: Share of the round trips that should meet the objective, such as 0.99; exported for alerts.
        owner: Owner of the hub; a label of its alerts.
        runbook: Address of the hub's own runbook; an annotation of its alerts.
        timeout: Maximum seconds of a fetch, by the wall clock.
        stale_if_error: Seconds beyond `ttl` in which an old catalogue is served if a fetch fails.
        stale_while_revalidate: Seconds beyond `ttl` in which an old catalogue is served at once while one fetch runs.
        patience: Seconds that an iteration waits for a round trip, counted from its start. Then the run goes on with
            the previous catalogue, if there is one, or without the hub's tools; the round trip continues.
        tell_model: Whether the instructions mention a hub whose tools are missing for lack of patience.
        max_entries: Maximum number of catalogues; the least recently used are evicted first.
        on_invalid: `quarantine` omits broken tools, with an event, instead of failing.
        clock: Monotonic clock in seconds.

    Raises:
        ConfigError: an option is invalid.
    """

    kind = "hub"
    detached = True
    measures_requests = True

    hub: ToolHub[DepsT_contra]
    _: KW_ONLY
    id: str
    ttl: float = 60.0
    key: Callable[[DiscoveryContext], Hashable] | None = None
    objective: float | None = None
    slo: float | None = None
    owner: str | None = None
    runbook: str | None = None
    timeout: float | None = 30.0
    stale_if_error: float = 0.0
    stale_while_revalidate: float = 0.0
    patience: float | None = None
    tell_model: bool = False
    max_entries: int = 1024
    on_invalid: OnInvalid = "fail"
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        check_options(self)
        self.source: ToolSource | None = Hub(self.id)
        self.server_address: str | None = getattr(self.hub, "server_address", None)
        self.server_port: int | None = getattr(self.hub, "server_port", None)
        self._patience = patience_of(f"DiscoveryProvider {self.id!r}", self.patience, tell_model=self.tell_model)
        self._lock = threading.RLock()  # a destructor that garbage collection runs here may re-enter
        self._entries: BoundedMap[Hashable, _Entry] = BoundedMap(self.max_entries)
        self._failures: BoundedMap[Hashable, _Failure] = BoundedMap(self.max_entries)
        self._late: BoundedMap[Hashable, LateFailure] = BoundedMap(self.max_entries)
        self._flights: dict[Hashable, Fetch] = {}
        self._unsettled: set[Fetch] = set()
        self._is_hub = True
        reset_in_child(self, _lock=threading.RLock, _flights=dict, _unsettled=set)

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool[DepsT_contra]]:
        """Return the cached catalogue, or wait for one.

        Raises:
            DiscoveryError: the hub failed; its own exception is the cause.
        """
        key = (self.key or _tenant)(ctx)
        patience = ctx.patience if self._patience is None or ctx.waits else self._patience
        while True:
            with self._lock:
                entry = self._entries.get(key)
                over = float("inf") if entry is None else self.clock() - entry.expires
                if entry is not None and over < 0:
                    ctx.report(cache="hit")
                    return entry.tools
                failure = self._failures.get(key)
                flight = self._active_flight(key)
                joined = flight is not None
                refusal = self._refusal(key, ctx) if flight is None else None
                revalidating = entry is not None and not entry.is_outdated and over < self.stale_while_revalidate
                if flight is None and refusal is None:
                    flight = self._flight(key, held=revalidating)
            if flight is not None and not joined:
                self._start(flight, flight.context(ctx))
            if entry is not None and revalidating:
                return self._stale(entry, over, ctx, failure.error if failure is not None else None)
            if flight is None:
                assert refusal is not None  # otherwise there is a fetch
                return self._rescue(entry, over, ctx, refusal.__cause__ or refusal, refusal)
            ctx.report(cache="joined" if joined else "miss", link=flight.span if joined else None)
            if await self._outlasts(flight, patience, ctx, joined=joined):
                return self._pending(flight, entry, ctx, patience)
            if flight.error is None:
                return flight.result.tools
            if not flight.abandoned:
                return self._rescue(entry, over, ctx, flight.error, self._failed(flight.error))
            # The other waiters were cancelled as this caller joined, or their event loop ended: fetch again.

    async def _outlasts(self, flight: Fetch, patience: Patience | None, ctx: DiscoveryContext, *, joined: bool) -> bool:
        """Wait as `Fetch.outlasts` does. If the caller that started the fetch leaves, the rest is observed."""
        try:
            return await flight.outlasts(patience, ctx, joined=joined)
        except BaseException:
            if not joined and flight.needs_observer():
                scope, trigger = current_scope(), trace.get_current_span().get_span_context()
                flight.observe(lambda: self._background(scope, trigger, age=flight.age), self._caused)
            raise

    def invalidate(self, key: Hashable | None = None) -> None:
        """Drop the catalogue of one key, or all catalogues; later callers do not join a fetch in flight."""
        with self._lock:
            if key is None:
                self._entries.clear()
                self._failures.clear()
                self._late.clear()
                self._flights.clear()
            else:
                self._entries.pop(key)
                self._failures.pop(key)
                self._late.pop(key)
                self._flights.pop(key, None)

    def _expire(self, key: Hashable, *, changed: bool = False) -> None:
        """Expire a catalogue now; later callers do not join a fetch in flight, and its result is not cached.

        Unlike `invalidate`, this keeps the catalogue for `stale_if_error` and, unless the hub `changed` its tools, for
        `stale_while_revalidate`. The back-off continues.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                expires = min(entry.expires, self.clock())
                is_outdated = entry.is_outdated or changed
                self._entries.put(key, entry._replace(expires=expires, is_outdated=is_outdated))
            flight = self._flights.pop(key, None)
            if flight is not None:
                flight.is_outdated = True

    async def aclose(self) -> None:
        """Cancel fetches in flight, drop all state, and close the hub if it has `aclose`."""
        with self._lock:
            flights = set(self._unsettled)
        for flight in flights:
            flight.close()
        self.invalidate()
        await close(self.hub)

    def _active_flight(self, key: Hashable) -> Fetch | None:
        """Return the fetch in flight, unless it was or is to be abandoned. Call with the lock held."""
        flight = self._flights.get(key)
        if flight is not None and (flight.abandoned or flight.is_orphaned):
            flight.cancel(Abandoned())
            return None
        return flight

    def _flight(self, key: Hashable, *, held: bool) -> Fetch:
        """Register a fetch as in flight. Call with the lock held, and start the fetch without it."""
        span = trace.get_current_span().get_span_context()
        linger = max(LINGER, self.objective or 0.0)
        flight = Fetch(
            span=span, timeout=self.timeout, held=held, settled=lambda flight: self._settle(key, flight), linger=linger
        )
        self._flights[key] = flight
        self._unsettled.add(flight)
        return flight

    def _start(self, flight: Fetch, ctx: DiscoveryContext) -> None:
        """Start a fetch; if no caller waits for it from the start, within a boundary of its own."""
        if not flight.is_observed:
            flight.start(self._fetch, ctx)
            return
        self._observe(flight).run(flight.start, self._fetch, ctx)

    def _observe(self, flight: Fetch) -> Entered:
        """Observe a fetch by a boundary of its own from now on."""
        trigger = trace.get_current_span().get_span_context()
        entered = self._background(current_scope(), trigger, age=flight.age)
        flight.span = entered.boundary.span.get_span_context()
        flight.observe(lambda: entered, self._caused)
        return entered

    def _background(self, of_run: Scope, trigger: SpanContext, *, age: float) -> Entered:
        """Enter the boundary of a round trip in no run, in a trace of its own, linked to the span that triggered it."""
        scope = of_run.detached()
        token = otel_context.attach(otel_context.Context())
        try:
            b = boundary(
                scope,
                BACKGROUND_DISCOVERY,
                self.id,
                start=scope.now() - round(age * 1e9),
                provider_id=self.id,
                provider_kind=self.kind,
                server_address=self.server_address,
                server_port=self.server_port,
                cache="miss",
            )
            b.link(trigger)
            return Entered(b)
        finally:
            otel_context.detach(token)

    def _pending(self, flight: Fetch, entry: _Entry | None, ctx: DiscoveryContext, patience: Patience | None) -> Tools:
        """Return the previous catalogue, or no tools, while a fetch continues in the background."""
        if flight.needs_observer():
            self._observe(flight)
        ctx.report(cache="pending", link=flight.span)
        if entry is not None:
            return entry.tools
        if patience is not None and patience.tell_model:
            notify(ctx, NOTICE.format(id=self.id))
        return ()

    async def _fetch(self, ctx: DiscoveryContext) -> HubCatalog:
        """Make a round trip."""
        request = self._request(ctx) if self._is_hub else None
        answer: object = self.hub.fetch_catalog(ctx)
        if inspect.isawaitable(answer):
            answer = await (answer if request is None else request.receive(answer))
        elif request is not None:
            request.answered()
        lifetime = self.ttl * (1 - JITTER * random.random())  # noqa: S311  (not for secrets)
        if isinstance(answer, HubCatalog):
            lifetime, answer = answer.lifetime, answer.tools
        catalog = HubCatalog(tuple(as_sequence(self.id, answer)), lifetime)
        await checked_catalog(self.id, catalog.tools, quarantine=self.on_invalid == "quarantine")
        return catalog

    def _request(self, ctx: DiscoveryContext) -> HubRequest:
        """Return the request, which the fetch ends."""
        scope = current_scope()
        if self.ttl > 0:
            scope.instruments.hubs.set(semconv.DISCOVERY_TTL, self.id, self.ttl)
        request = HubRequest(scope, self.id, self.kind, self.objective)
        ctx.requested(request)
        return request

    def _settle(self, key: Hashable, flight: Fetch) -> None:
        """Cache the result of a fetch, unless it was invalidated or expired during the fetch."""
        with self._lock:
            self._unsettled.discard(flight)
            is_current = self._flights.get(key) is flight
            if is_current:
                del self._flights[key]
            elif not flight.is_outdated:
                return
            if flight.error is None:
                self._failures.pop(key)
                if is_current:
                    entry = _Entry(flight.result.tools, expires=self.clock() + flight.result.lifetime)
                    self._entries.put(key, entry)
            elif not flight.abandoned:
                self._note_failure(key, flight.error)
                if flight.outlasted:
                    self._late.put(key, LateFailure(flight.error, flight.span, self.clock()))

    def _note_failure(self, key: Hashable, error: BaseException) -> None:
        """Start or extend the back-off."""
        with self._lock:
            previous = self._failures.get(key)
            number = previous.number + 1 if previous else 1
            self._failures.put(key, _Failure(error, number, self.clock() + backoff(number, error)))

    def _refusal(self, key: Hashable, ctx: DiscoveryContext) -> DiscoveryError | None:
        """Return the error of a fetch that failed in the background since the last discovery, or of the back-off."""
        late = self._late.pop(key)
        if ctx.is_retry:
            return None
        if late is None or self.clock() - late.time > LONGEST_BACKOFF:
            return self._back_off(key)
        ctx.report(cache="pending", link=late.span)
        return self._caused(late.error)

    def _back_off(self, key: Hashable) -> DiscoveryBackoff | None:
        """Return the error to raise during the back-off, or None."""
        failure = self._failures.get(key)
        if failure is None or (wait := failure.until - self.clock()) <= 0:
            return None
        error = DiscoveryBackoff(self.id, wait, failure.error)
        error.__cause__ = failure.error
        return error

    def _rescue(
        self, entry: _Entry | None, over: float, ctx: DiscoveryContext, error: BaseException, failure: DiscoveryError
    ) -> Tools:
        """Serve the old catalogue if `stale_if_error` allows it, or raise `failure`."""
        if entry is not None and over < self.stale_if_error:
            return self._stale(entry, over, ctx, error)
        raise failure from failure.__cause__ or error

    def _stale(self, entry: _Entry, over: float, ctx: DiscoveryContext, error: BaseException | None) -> Tools:
        """Serve an old catalogue, and emit the event of it."""
        ctx.report(cache="stale")
        scope = current_scope()
        payload = {"provider_id": self.id, "seconds_over": over, **scope.error_facts(error)}
        scope.emit(ToolsCatalogStale, trace.get_current_span().get_span_context(), payload)
        return entry.tools

    def _caused(self, error: BaseException) -> DiscoveryError:
        """Return a new error as `_failed` does, with its cause."""
        failure = self._failed(error)
        failure.__cause__ = failure.__cause__ or error
        return failure

    def _failed(self, error: BaseException) -> DiscoveryError:
        """Return a new error for each caller: one exception raised in many tasks would mix their tracebacks."""
        if isinstance(error, OutOfTime):
            return DiscoveryTimeout(self.id, f"the hub did not answer within {self.timeout:g} s")
        if isinstance(error, InvalidCatalog | DiscoveryTimeout):
            return type(error)(self.id, error.problem)
        return DiscoveryError(self.id, describe(error))


def backoff(failures: int, last: BaseException | None = None) -> float:
    """Return the seconds of back-off after consecutive failures, or what the last one requests, up to the maximum."""
    seconds = retry_after_of(last) if last is not None else None
    if seconds is None:
        seconds = FIRST_BACKOFF * 2.0 ** min(failures - 1, 64)  # 64: no float holds 2 ** 1024
    return min(seconds, LONGEST_BACKOFF)


def _tenant(ctx: DiscoveryContext) -> Hashable:
    return ctx.identity.tenant if ctx.identity is not None else None
