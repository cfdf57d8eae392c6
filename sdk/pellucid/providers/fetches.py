"""Fetches of catalogues, and the telemetry of those that outlast the patience of their callers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import anyio
from anyio.lowlevel import checkpoint
from opentelemetry.trace import SpanContext
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.concurrency.single_flight import Flight
from pellucid.concurrency.tasks import spawn
from pellucid.context import DiscoveryContext, Patience
from pellucid.errors import ConfigError, DiscoveryError
from pellucid.failures import error_type_of
from pellucid.providers.provider import HubCatalog
from pellucid.telemetry import Boundary, current_scope


class Fetch(Flight[HubCatalog]):
    """A fetch of a catalogue.

    Attributes:
        is_observed: Whether a boundary of its own observes the fetch.
        is_closed: Whether the fetch was cancelled because the provider was closed.
        described: Span attributes of the round trip.
    """

    def __init__(
        self, *, span: SpanContext, timeout: float | None, held: bool, settled: Callable[[Fetch], None]
    ) -> None:
        super().__init__(span=span, timeout=timeout, held=held, settled=lambda _: settled(self))
        self.is_observed = held
        self.is_closed = False
        self.described: dict[str, AttributeValue] = {}

    def context(self, ctx: DiscoveryContext) -> DiscoveryContext:
        """Return the context of the caller that starts the fetch, which also collects the attributes."""

        def describe(attributes: Mapping[str, AttributeValue]) -> None:
            self.described.update(attributes)
            ctx.describe(attributes)

        return ctx.reporting(ctx.report, describe, ctx.timeout)

    async def outlasts(self, patience: Patience | None, ctx: DiscoveryContext, *, joined: bool) -> bool:
        """Wait for the fetch, and return whether it takes longer than the patience, counted from its start.

        If a caller with less patience had it observed, the caller that started it reports that it joined as well: a
        round trip is measured once.
        """
        try:
            return not await self.wait(patience.seconds - self.age if patience is not None else math.inf)
        finally:
            if self.is_observed and not joined:
                ctx.report(cache="joined", link=self.span)

    def close(self) -> None:
        """Cancel the fetch, because its provider is closed."""
        self.is_closed = True
        self.cancel(anyio.ClosedResourceError("the provider was closed during the fetch"))


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


def patience_of(owner: str, seconds: float | None, *, tell_model: bool) -> Patience | None:
    """Return the patience that `owner` was given, if any.

    Raises:
        ConfigError: it is negative or not finite, or the model is to be told and there is none.
    """
    if seconds is not None and not 0 <= seconds < math.inf:
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


def observe(fetch: Fetch, b: Boundary, failure: Callable[[BaseException], DiscoveryError]) -> None:
    """Observe the rest of a fetch with a boundary, in the background; `failure` converts its error."""
    fetch.span = b.span.get_span_context()
    spawn(_observe, fetch, b, failure)


async def _observe(fetch: Fetch, b: Boundary, failure: Callable[[BaseException], DiscoveryError]) -> None:
    with suppress(DiscoveryError), anyio.CancelScope() as scope, b:
        try:
            await fetch.wait()
        finally:
            b.attributes(fetch.described)
        if fetch.abandoned or fetch.is_closed:
            scope.cancel()
            await checkpoint()
        error = failure(fetch.error) if fetch.error is not None else None
        _measure(b, error)
        if error is not None:
            raise error
        b.note(tool_count=len(fetch.result.tools))


def _measure(b: Boundary, error: DiscoveryError | None) -> None:
    scope = current_scope()
    labels = {semconv.PROVIDER_ID: b.noted("provider_id")}
    if error is not None:
        labels[semconv.ERROR_TYPE] = error_type_of(error)
    scope.count(semconv.DISCOVERY_PENDING_DURATION, (scope.now() - b.start) / 1e9, labels, b.context)
