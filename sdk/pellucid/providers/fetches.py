"""Fetches of catalogues, and the telemetry of those that outlast the patience of their callers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import anyio
from opentelemetry.trace import SpanContext
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.concurrency.single_flight import Flight
from pellucid.context import DiscoveryContext, Patience
from pellucid.errors import ConfigError, DiscoveryError
from pellucid.failures import error_type_of
from pellucid.providers.provider import HubCatalog
from pellucid.telemetry import Boundary, Entered, HubRequest, current_scope


class Fetch(Flight[HubCatalog]):
    """A fetch of a catalogue.

    Attributes:
        request: The request to the hub; None until it is sent.
        is_observed: Whether a boundary of its own observes the fetch.
        is_closed: Whether the fetch was cancelled because the provider was closed.
        described: Span attributes of the round trip.
    """

    def __init__(
        self,
        *,
        span: SpanContext,
        timeout: float | None,
        held: bool,
        settled: Callable[[Fetch], None],
        linger: float,
    ) -> None:
        super().__init__(span=span, timeout=timeout, held=held, settled=lambda _: self._end(settled), linger=linger)
        self.request: HubRequest | None = None
        self.is_observed = held
        self.is_closed = False
        self.described: dict[str, AttributeValue] = {}
        self._observers: list[Callable[[], None]] = []

    def context(self, ctx: DiscoveryContext) -> DiscoveryContext:
        """Return the context of the caller that starts the fetch, which also collects request and attributes."""

        def describe(attributes: Mapping[str, AttributeValue]) -> None:
            self.described.update(attributes)
            if not self.is_observed:
                ctx.describe(attributes)

        def requested(request: HubRequest) -> None:
            self.request = request

        return ctx.reporting(ctx.report, describe, ctx.timeout, requested)

    async def outlasts(self, patience: Patience | None, ctx: DiscoveryContext, *, joined: bool) -> bool:
        """Wait for the fetch, and return whether it takes longer than the patience, counted from its start.

        If a caller with less patience had it observed, the caller that started it reports that it joined as well: its
        span is not that of the request.
        """
        try:
            outlasts = not await self.wait(patience.seconds - self.age if patience is not None else math.inf)
        finally:
            if self.is_observed and not joined:
                ctx.report(cache="joined", link=self.span)
        if self.request is not None and not outlasts:
            self.request.resumed()
            if not (joined or self.is_observed):
                ctx.requested(self.request)
        return outlasts

    def needs_observer(self) -> bool:
        """Return whether no boundary of its own observes the fetch; the caller then provides one."""
        with self._lock:
            needs_observer, self.is_observed = not self.is_observed, True
        return needs_observer

    def close(self) -> None:
        """Cancel the fetch, because its provider is closed."""
        self.is_closed = True
        self.cancel(anyio.ClosedResourceError("the provider was closed during the fetch"))

    def observe(self, enter: Callable[[], Entered], failure: Callable[[BaseException], DiscoveryError]) -> None:
        """Observe the fetch with a boundary in the background, which `enter` returns when the fetch has ended.

        Args:
            enter: Returns the boundary.
            failure: Converts the error of the fetch.
        """
        with self._lock:
            if not self.is_settled:
                self._observers.append(partial(self._end_observation, enter, failure))
                return
        self._end_observation(enter, failure)

    def _end(self, settled: Callable[[Fetch], None]) -> None:
        if self.request is not None:
            is_given_up = self.abandoned or self.is_closed or isinstance(self.error, KeyboardInterrupt)
            self.request.end(self.error, is_abandoned=is_given_up, is_early=is_given_up and not self.has_lingered)
        settled(self)
        for end in self._observers:
            end()

    def _end_observation(
        self, enter: Callable[[], Entered], failure: Callable[[BaseException], DiscoveryError]
    ) -> None:
        entered = enter()
        b = entered.boundary
        b.attributes(self.described)
        if self.request is not None:
            self.request.note(b)
        if self.abandoned or self.is_closed:
            entered.abandon()
            return
        error = failure(self.error) if self.error is not None else None
        if self.outlasted:
            _measure(b, error)
        if error is None:
            b.note(tool_count=len(self.result.tools))
        entered.end(error)


class LateFailure(NamedTuple):
    """Failure of a fetch in the background that no discovery has raised yet.

    Attributes:
        error: The failure.
        span: Span of the round trip.
        time: Time of the failure, on the provider's clock.
    """

    error: BaseException
    span: SpanContext
    time: float


def patience_of(owner: str, seconds: Any, *, tell_model: bool) -> Patience | None:
    """Return the patience that `owner` was given, if any.

    Raises:
        ConfigError: it is negative or not finite, or a notice is to go to the model and there is none.
    """
    if not (seconds is None or (isinstance(seconds, int | float) and 0 <= seconds < math.inf)):
        raise ConfigError(
            f"{owner}: patience={seconds!r} must be finite and not negative; use None to wait for every hub"
        )
    if seconds is None and tell_model:
        raise ConfigError(f"{owner}: tell_model=True needs patience=; without it, no tools are missing")
    return Patience(seconds, tell_model) if seconds is not None else None


def notify(ctx: DiscoveryContext, notice: str) -> None:
    """Add a sentence to the instructions of the run, and record it on the span of the discovery."""
    ctx.describe({semconv.DISCOVERY_NOTICE: notice})
    ctx.notify(notice)


def _measure(b: Boundary, error: DiscoveryError | None) -> None:
    scope = current_scope()
    labels = {semconv.PROVIDER_ID: b.noted("provider_id")}
    if error is not None:
        labels[semconv.ERROR_TYPE] = error_type_of(error)
    scope.count(semconv.DISCOVERY_PENDING_DURATION, (scope.now() - b.start) / 1e9, labels, b.context)
