"""A tool provider over a remote hub: caching, one fetch at a time, and honesty about both."""

from __future__ import annotations

import inspect
import random
import threading
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import anyio
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanContext

from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.concurrency.forks import reset_in_child
from pellucid.concurrency.race import OutOfTime, race
from pellucid.concurrency.single_flight import Abandoned, Flight
from pellucid.context import DiscoveryContext
from pellucid.errors import ConfigError, DiscoveryBackoff, DiscoveryError, DiscoveryTimeout, InvalidCatalog
from pellucid.events import ToolsCatalogStale
from pellucid.failures import describe, error_type_of, retry_after_of
from pellucid.providers.provider import HubCatalog, OnInvalid, ToolHub, Tools
from pellucid.telemetry import DISCOVERY, boundary, current_scope
from pellucid.tools.catalog import as_sequence, check_catalog
from pellucid.tools.tool import Hub

FIRST_BACKOFF: Final = 0.5
LONGEST_BACKOFF: Final = 30.0
JITTER: Final = 0.1
"""Entries live up to this share shorter than their time to live, so that they do not all end at once."""

Fetch: TypeAlias = Flight[HubCatalog]


@dataclass(frozen=True, slots=True)
class _Entry:
    """A cached catalogue. Attributes: is_outdated: the hub announced that its tools have changed since."""

    tools: Tools
    expires: float
    is_outdated: bool = False


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException
    count: int
    until: float


class DiscoveryProvider:
    """Lists the tools of a hub, with a cache.

    One fetch per key is under way at a time, whatever number of runs, event loops and threads ask; each caller waits
    with its own cancellation, and the fetch is cancelled when nobody waits for it. Failures are not cached, but a hub
    that failed is left alone for a moment (0.5 s, doubling up to 30 s while it goes on failing).

    Args:
        hub: Where the catalogue comes from.
        id: Value of `pellucid.provider.id`.
        ttl: Seconds that a catalogue is good for, counted from when it arrived.
        key: Says which callers may share a catalogue; the tenant unless given.
        objective: Seconds that a round trip should take; exported for alerts.
        timeout: Seconds that a fetch may take, by the wall clock.
        stale_if_error: Seconds beyond `ttl` in which an old catalogue is served if a fetch fails.
        stale_while_revalidate: Seconds beyond `ttl` in which an old catalogue is served at once while one fetch runs.
        max_entries: Catalogues kept; the least recently used go first.
        on_invalid: `quarantine` leaves broken tools out, with an event, instead of failing.
        clock: Monotonic clock in seconds.

    Raises:
        ConfigError: an option makes no sense.
    """

    kind = "hub"
    detached = True

    def __init__(
        self,
        hub: ToolHub,
        *,
        id: str,  # noqa: A002  (named in the public contract)
        ttl: float = 60.0,
        key: Callable[[DiscoveryContext], Hashable] | None = None,
        objective: float | None = None,
        timeout: float | None = 30.0,
        stale_if_error: float = 0.0,
        stale_while_revalidate: float = 0.0,
        max_entries: int = 1024,
        on_invalid: OnInvalid = "fail",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not id:
            raise ConfigError.empty("DiscoveryProvider", "id", "it names the hub in traces, metrics and alerts")
        seconds = {"ttl": ttl, "stale_if_error": stale_if_error, "stale_while_revalidate": stale_while_revalidate}
        check_not_negative(f"DiscoveryProvider {id!r}", {**seconds, "timeout": timeout})
        if max_entries < 1:
            raise ConfigError(f"DiscoveryProvider {id!r}: max_entries={max_entries!r} must be at least 1")
        self.id = id
        self.source = Hub(id)
        self.objective = objective
        self.on_invalid = on_invalid
        self.server_address: str | None = getattr(hub, "server_address", None)
        self.server_port: int | None = getattr(hub, "server_port", None)
        self._hub = hub
        self._ttl = ttl
        self._key = key or _tenant
        self.timeout = timeout
        self._stale_if_error = stale_if_error
        self._stale_while_revalidate = stale_while_revalidate
        self._clock = clock
        self._lock = threading.RLock()  # what a garbage collection in here ends may lead here again
        self._entries: BoundedMap[Hashable, _Entry] = BoundedMap(max_entries)
        self._failures: BoundedMap[Hashable, _Failure] = BoundedMap(max_entries)
        self._flights: dict[Hashable, Fetch] = {}
        reset_in_child(self, _lock=threading.RLock, _flights=dict)

    async def list_tools(self, ctx: DiscoveryContext) -> Tools:
        """Return the cached catalogue, or wait for one.

        Raises:
            DiscoveryError: the hub failed; its own exception is the cause.
        """
        key = self._key(ctx)
        while True:
            with self._lock:
                entry = self._entries.get(key)
                over = float("inf") if entry is None else self._clock() - entry.expires
                if entry is not None and over < 0:
                    ctx.report(cache="hit")
                    return entry.tools
                failure = self._failures.get(key)
                refusal = self._refusal(key)
                flight = self._flights.get(key)
                if flight is not None and flight.is_orphaned:
                    flight.cancel(Abandoned())
                    flight = None
                joined = flight is not None
                revalidating = entry is not None and not entry.is_outdated and over < self._stale_while_revalidate
                if flight is None and refusal is None:
                    flight = self._flight(key, held=revalidating)
            if flight is not None and not joined:
                flight.start(self._refresh(ctx, flight.span) if revalidating else self._fetch(ctx))
            if entry is not None and revalidating:
                return self._stale(entry, over, ctx, failure.error if failure is not None else None)
            if flight is None:
                assert failure is not None and refusal is not None  # noqa: PT018  (both or neither)
                return self._rescue(entry, over, ctx, failure.error, refusal)
            ctx.report(cache="joined" if joined else "miss", link=flight.span if joined else None)
            await flight.wait()
            if flight.error is None:
                return flight.result.tools
            if not flight.abandoned:
                return self._rescue(entry, over, ctx, flight.error, self._failed(flight.error))
            # The others left in the moment in which this caller came, or their event loop ended: it asks by itself.

    def invalidate(self, key: Hashable | None = None) -> None:
        """Forget the catalogue of one key, or all of them; a fetch under way is not used for later callers."""
        with self._lock:
            if key is None:
                self._entries.clear()
                self._failures.clear()
                self._flights.clear()
            else:
                self._entries.pop(key)
                self._failures.pop(key)
                self._flights.pop(key, None)

    def _expire(self, key: Hashable, *, changed: bool = False) -> None:
        """End the life of a catalogue now; later callers do not join a fetch under way, and its result is not kept.

        Unlike `invalidate`, this keeps the catalogue for `stale_if_error` and, unless the hub `changed` its tools, for
        `stale_while_revalidate`. The back-off continues.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                expires = min(entry.expires, self._clock())
                is_outdated = entry.is_outdated or changed
                self._entries.put(key, replace(entry, expires=expires, is_outdated=is_outdated))
            flight = self._flights.pop(key, None)
            if flight is not None:
                flight.is_outdated = True

    async def aclose(self) -> None:
        """Cancel fetches under way, forget everything, and close the hub if it can be closed."""
        with self._lock:
            flights = list(self._flights.values())
        for flight in flights:
            flight.cancel(anyio.ClosedResourceError("the provider was closed meanwhile"))
        self.invalidate()
        close = getattr(self._hub, "aclose", None)
        if close is not None:
            await close()

    def _flight(self, key: Hashable, *, held: bool) -> Fetch:
        """Note that a fetch is under way; called under the lock, and started outside of it."""
        span = trace.get_current_span().get_span_context()
        timeout = None if held else self.timeout  # a refresh ends itself, so that its span says why
        flight = Fetch(span=span, timeout=timeout, held=held, settled=lambda flight: self._settle(key, flight))
        self._flights[key] = flight
        return flight

    def _fetch(self, ctx: DiscoveryContext) -> Callable[[], Awaitable[HubCatalog]]:
        """Return a fetch for callers that wait for it; it belongs to the run of the first."""
        hubs = current_scope().instruments.hubs

        async def fetch() -> HubCatalog:
            with hubs.fetching(self.id):
                catalog = await race(self._ask, ctx)
            hubs.succeeded(self.id)
            return catalog

        return fetch

    def _refresh(self, ctx: DiscoveryContext, span: SpanContext) -> Callable[[], Awaitable[HubCatalog]]:
        """Return a fetch in the background: it belongs to no run, and its trace is linked to what set it off."""
        scope = current_scope()

        async def refresh() -> HubCatalog:
            token = otel_context.attach(otel_context.Context())
            try:
                with boundary(
                    scope.detached(),
                    DISCOVERY,
                    self.id,
                    provider_id=self.id,
                    provider_kind=self.kind,
                    cache="miss",
                    objective=self.objective,
                ) as b:
                    b.link(span)
                    fetch = self._fetch(ctx.reporting(ctx.report, b.attributes, ctx.timeout))
                    with anyio.move_on_after(self.timeout):
                        catalog = await fetch()
                        b.note(tool_count=len(catalog.tools))
                        return catalog
                    raise self._failed(OutOfTime())
            finally:
                otel_context.detach(token)

        return refresh

    async def _ask(self, ctx: DiscoveryContext) -> HubCatalog:
        answer: object = self._hub.fetch_catalog(ctx)
        if inspect.isawaitable(answer):
            answer = await answer
        lifetime = self._ttl * (1 - JITTER * random.random())  # noqa: S311  (not for secrets)
        if isinstance(answer, HubCatalog):
            lifetime, answer = answer.lifetime, answer.tools
        catalog = HubCatalog(tuple(as_sequence(self.id, answer)), lifetime)
        check_catalog(self.id, catalog.tools, quarantine=self.on_invalid == "quarantine")
        return catalog

    def _settle(self, key: Hashable, flight: Fetch) -> None:
        """Keep the result of a fetch, unless it was invalidated or has expired meanwhile."""
        with self._lock:
            is_current = self._flights.get(key) is flight
            if is_current:
                del self._flights[key]
            elif not flight.is_outdated:
                return
            if flight.error is None:
                self._failures.pop(key)
                if is_current:
                    entry = _Entry(flight.result.tools, expires=self._clock() + flight.result.lifetime)
                    self._entries.put(key, entry)
            elif not flight.abandoned:
                self._note_failure(key, flight.error)

    def _note_failure(self, key: Hashable, error: BaseException) -> None:
        """Start the back-off, or make it longer."""
        with self._lock:
            previous = self._failures.get(key)
            count = previous.count + 1 if previous else 1
            until = self._clock() + backoff(count, error)
            self._failures.put(key, _Failure(error, count, until))

    def _refusal(self, key: Hashable) -> DiscoveryBackoff | None:
        """Return the error to raise while the hub is left alone."""
        failure = self._failures.get(key)
        if failure is None or (wait := failure.until - self._clock()) <= 0:
            return None
        refusal = DiscoveryBackoff(self.id, wait, failure.error)
        refusal.__cause__ = failure.error
        return refusal

    def _rescue(
        self, entry: _Entry | None, over: float, ctx: DiscoveryContext, error: BaseException, failure: DiscoveryError
    ) -> Tools:
        """Serve the old catalogue if `stale_if_error` allows it, or raise."""
        if entry is not None and over < self._stale_if_error:
            return self._stale(entry, over, ctx, error)
        raise failure from failure.__cause__ or error

    def _stale(self, entry: _Entry, over: float, ctx: DiscoveryContext, error: BaseException | None) -> Tools:
        """Serve an old catalogue, and say so."""
        ctx.report(cache="stale")
        scope = current_scope()
        scope.emit(
            ToolsCatalogStale,
            trace.get_current_span().get_span_context(),
            {
                "provider_id": self.id,
                "seconds_over": over,
                "error": scope.text_of(error) if error is not None else None,
                "error_type": error_type_of(error) if error is not None else None,
            },
        )
        return entry.tools

    def _failed(self, error: BaseException) -> DiscoveryError:
        """Return a new error for each caller: one exception raised in many tasks mixes up their tracebacks."""
        if isinstance(error, OutOfTime):
            return DiscoveryTimeout(self.id, f"the hub did not answer within {self.timeout:g} s")
        if isinstance(error, InvalidCatalog | DiscoveryTimeout):
            return type(error)(self.id, error.problem)
        return DiscoveryError(self.id, describe(error))


def backoff(failures: int, last: BaseException | None = None) -> float:
    """Return for how many seconds a hub is left alone after so many failures in a row, or as the last one asks."""
    seconds = retry_after_of(last) if last is not None else None
    if seconds is None:
        seconds = FIRST_BACKOFF * 2.0 ** min(failures - 1, 64)  # 64: no float holds 2 ** 1024
    return min(seconds, LONGEST_BACKOFF)


def check_not_negative(owner: str, options: Mapping[str, float | None]) -> None:
    """Refuse negative numbers of seconds.

    Raises:
        ConfigError: an option is negative.
    """
    for name, value in options.items():
        if value is not None and value < 0:
            raise ConfigError(f"{owner}: {name}={value!r} must not be negative")


def _tenant(ctx: DiscoveryContext) -> Hashable:
    return ctx.identity.tenant if ctx.identity is not None else None
