"""Requests to hubs, measured where they happen: not by callers that wait, which the event loop may resume late."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Final, TypeVar

from anyio.lowlevel import current_token
from opentelemetry import context as otel_context
from opentelemetry.util.types import AttributeValue

from pellucid import semconv
from pellucid.concurrency.turns import Delayed
from pellucid.failures import error_type_of
from pellucid.telemetry.boundary import Boundary
from pellucid.telemetry.hubs import RequestKey
from pellucid.telemetry.scope import Scope

_T = TypeVar("_T")

_OBJECTIVE: Final = semconv.DISCOVERY_OBJECTIVE.name
_LAST_SUCCESS: Final = semconv.DISCOVERY_LAST_SUCCESS.name

NEGLIGIBLE: Final = 0.001
"""Seconds of delay by the event loop below which the record of a request does not mention it."""


class HubRequest:
    """One request for the tools of a hub, from its sending to its answer, or to the moment at which it is given up.

    A listing of several pages is one request; connecting is part of it. It is measured once, when it ends, with an
    exemplar that refers to the current span of its start.

    Args:
        scope: Telemetry of the run that sends it.
        provider_id: Id of the hub.
        kind: Kind of the hub's provider.
        objective: Latency objective in seconds.

    Attributes:
        start: Time at which it was sent, in nanoseconds since the epoch, from `scope.now()`.
        facts: Attributes of its span event; None until it has ended.
    """

    __slots__ = (
        "_answered_at",
        "_context",
        "_delay",
        "_ended_at",
        "_has_ended",
        "_hub",
        "_key",
        "_labels",
        "_objective",
        "_scope",
        "_token",
        "facts",
        "start",
    )

    def __init__(self, scope: Scope, provider_id: str, kind: str, objective: float | None) -> None:
        self.facts: dict[str, AttributeValue] | None = None
        self._scope, self._objective = scope, objective
        self._labels: dict[str, AttributeValue] = {semconv.PROVIDER_ID: provider_id, semconv.PROVIDER_KIND: kind}
        self._context = otel_context.get_current()
        self._answered_at: int | None = None
        self._ended_at: int | None = None
        self._delay = 0.0
        self._has_ended = False
        self._hub = scope.instruments.hubs.of(provider_id)
        if objective is not None:
            self._hub.values[_OBJECTIVE] = objective
        self._token = current_token()
        self._key: RequestKey | None = self._hub.sent(self._token)
        self.start = scope.now()

    async def receive(self, answer: Awaitable[_T]) -> _T:
        """Await `answer`, whose end is that of the request."""
        delayed = Delayed(answer, self._token)
        try:
            result = await delayed
        except BaseException:
            self._answered_at = self._scope.now()
            raise
        else:
            self.answered()
            return result
        finally:
            self._delay += delayed.delay

    def answered(self) -> None:
        """Note that the answer is there; what happens to it then takes no time of the hub."""
        self._answered_at = self._scope.now()
        self._release(is_answered=True)

    def pause(self) -> None:
        """Note that the hub is not awaited for now."""
        self._release(is_answered=None)

    def sent_again(self) -> None:
        """Note that the request continues, such as with the next page."""
        self._release(is_answered=None)
        self._key = self._hub.sent(self._token)

    def resumed(self) -> None:
        """Measure how long after the answer the event loop resumed the run that waited for it, which calls this."""
        answered_at = self._ended_at or self._answered_at
        if answered_at is not None:
            self._scope.count(semconv.WAKEUP_DELAY, (self._scope.now() - answered_at) / 1e9, None, self._context)

    def discard(self) -> None:
        """Measure nothing: no request was made."""
        self._release(is_answered=None)
        self._has_ended = True

    def end(self, error: BaseException | None = None, *, is_abandoned: bool = False, is_early: bool = False) -> None:
        """Measure the request; only the first call counts.

        Args:
            error: Exception with which it ended.
            is_abandoned: Whether it was given up because no caller waited for it any longer.
            is_early: Whether it was given up for a reason of the process, such as its end, which says nothing about the
                hub.
        """
        if self._has_ended:
            return
        self._has_ended = True
        scope, labels = self._scope, self._labels
        outcome, error_type = _outcome(error, is_abandoned=is_abandoned)
        labels[semconv.OUTCOME] = outcome
        if error_type is not None:
            labels[semconv.ERROR_TYPE] = error_type
        is_answered = outcome in (semconv.COMPLETED, semconv.FAILED)
        end = self._ended_at = scope.now()
        if is_answered and self._answered_at is not None:
            end = self._answered_at
        seconds = max(0, end - self.start) / 1e9
        if self._key is not None or outcome != semconv.COMPLETED:
            self._release(is_answered=None if is_early else is_answered)
        if outcome == semconv.COMPLETED:
            self._hub.values[_LAST_SUCCESS] = time.time()
        scope.count(semconv.HUB_LISTING_DURATION, seconds, labels, self._context)
        self.facts = facts = {**labels, semconv.HUB_LISTING_SECONDS: seconds}
        if self._delay > NEGLIGIBLE:
            facts[semconv.WAKEUP_DELAY_SECONDS] = self._delay
        if self._objective is not None:
            is_late = seconds - self._delay > self._objective
            facts[semconv.HUB_LATE] = is_late
            if is_late or outcome == semconv.COMPLETED:
                self._hub.streak(is_late=is_late)
            scope.count(semconv.HUB_OVER_OBJECTIVE, int(is_late), labels, self._context)  # 0 creates the series

    def note(self, b: Boundary) -> None:
        """Add the request to the span of the discovery that made it."""
        if self.facts is not None:
            b.event(semconv.HUB_LISTING, self.facts, self.start)
            b.note(attempts=(b.noted("attempts") or 0) + 1, listing=self.facts[semconv.HUB_LISTING_SECONDS])

    def _release(self, *, is_answered: bool | None) -> None:
        """Note that nobody waits for the hub any longer; None if that says nothing about it."""
        if self._key is not None or is_answered:
            self._hub.ended(self._key, is_answered=is_answered)
            self._key = None


def _outcome(error: BaseException | None, *, is_abandoned: bool) -> tuple[str, str | None]:
    """Return the outcome of a request and its `error.type`."""
    if is_abandoned:
        return semconv.ABANDONED, None
    if error is None:
        return semconv.COMPLETED, None
    error_type = error_type_of(error)
    return (semconv.TIMEOUT if error_type == semconv.TIMEOUT else semconv.FAILED), error_type
