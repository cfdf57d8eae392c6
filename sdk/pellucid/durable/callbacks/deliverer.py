"""Deliver what is due: claim a state, post it, note the answer."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
from opentelemetry import propagate
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context

from pellucid import semconv
from pellucid.durable.callbacks.options import Callbacks
from pellucid.durable.states.bodies import state_json
from pellucid.durable.states.metrics import CallbackOutcome, StoreMetrics
from pellucid.durable.states.records import context_of_run, state_of
from pellucid.durable.store import CallbackClaim, RunStore
from pellucid.errors import CallbackRefused, StoreError, StoreUnavailable
from pellucid.failures import error_type_of
from pellucid.version import __version__

if TYPE_CHECKING:  # an extra
    import httpx2

_log = logging.getLogger("pellucid.durable_runs")

_WAIT: Final = 60.0
"""Seconds after which the deliverer looks again, whatever it was notified of."""

_MARGIN: Final = 30.0
"""Seconds by which a lease is longer than the attempt: for the store, which may be away for a while."""

_PATIENCE: Final = 5.0
"""Seconds for giving a claim back when the deliverer is stopped."""

_OK: Final = range(200, 300)
_GONE: Final = 410


@dataclass(frozen=True, slots=True)
class _Answer:
    """Answer of a receiver.

    Attributes:
        error: Error for which the state counts as not delivered; empty if it was.
        error_type: Value of `error.type`.
        is_final: Whether the receiver wants no further attempt.
        retry_after: Seconds for which it wants none.
    """

    error: str = ""
    error_type: str = ""
    is_final: bool = False
    retry_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliverer:
    """Part of `DurableRuns` that delivers states to callback URLs.

    Attributes:
        store: The store.
        callbacks: Options.
        metrics: Telemetry.
        poll: Seconds between attempts to reach the store while it is away.
    """

    store: RunStore
    callbacks: Callbacks
    metrics: StoreMetrics
    poll: float

    async def work(self) -> None:
        """Deliver states as they become due, until cancelled."""
        self.metrics.delivering()
        slots = anyio.Semaphore(self.callbacks.concurrency)
        async with _client() as client, anyio.create_task_group() as tasks:
            while True:
                await slots.acquire()
                tasks.start_soon(self._deliver, client, await self._next(), slots)

    async def deliver_due(self) -> int:
        """Deliver the states that are due, until none is; return the number of attempts."""
        slots, attempts = anyio.Semaphore(self.callbacks.concurrency), 0
        async with _client() as client:
            while True:
                before = attempts
                async with anyio.create_task_group() as tasks:
                    await slots.acquire()
                    while (claim := await self._claim()) is not None:
                        attempts += 1
                        tasks.start_soon(self._deliver, client, claim, slots)
                        await slots.acquire()
                    slots.release()
                if attempts == before:
                    return attempts

    async def _claim(self) -> CallbackClaim | None:
        claim: CallbackClaim | None = None
        with anyio.CancelScope(shield=True):  # a claim whose caller is cancelled would be lost until its lease ends
            claim = await self.store.claim_callback(self.callbacks.timeout + _MARGIN)
        return claim  # noqa: RET504  (mypy holds that the scope may swallow exceptions)

    async def _next(self) -> CallbackClaim:
        """Wait for a state that is due, and claim it."""
        while True:
            try:
                if (claim := await self._claim()) is not None:
                    return claim
                await self.store.wait_for_callbacks(_WAIT)
            except StoreUnavailable as error:
                _log.warning("callbacks.store_unavailable %s", error)
                await anyio.sleep(self.poll)

    async def _deliver(self, client: httpx2.AsyncClient, claim: CallbackClaim, slots: anyio.Semaphore) -> None:
        try:
            await self._attempt(client, claim)
        except StoreError as error:  # the state is due again after the lease
            _log.warning("callback.interrupted run_id=%s %s", claim.run.id, error)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_PATIENCE, shield=True):
                try:
                    await self.store.callback_failed(claim, "the worker was stopped", delay=0.0)
                except StoreError as error:
                    _log.warning("callback.not_released run_id=%s %s", claim.run.id, error)
            raise
        finally:
            slots.release()

    async def _attempt(self, client: httpx2.AsyncClient, claim: CallbackClaim) -> None:
        callback = claim.callback
        with self.metrics.tracer.start_as_current_span(
            "POST",
            context=context_of_run(claim.run),
            kind=SpanKind.CLIENT,
            attributes={semconv.HTTP_REQUEST_METHOD: "POST", semconv.DURABLE_RUN_ID: claim.run.id},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if callback.attempts > 1:
                span.set_attribute(semconv.HTTP_RESEND_COUNT, callback.attempts - 1)
            try:
                answer = await self._post(client, claim, span)
            except CallbackRefused as error:  # the operator has changed what is allowed
                answer = _Answer(str(error), error_type_of(error))
            except Exception as error:  # noqa: BLE001  (a state that cannot be sent must not end the worker)
                error_type = error_type_of(error)  # the text may have the URL
                answer = _Answer(f"the message could not be sent: {error_type}", error_type)
            if answer.error:
                span.set_attribute(semconv.ERROR_TYPE, answer.error_type)
                span.set_status(StatusCode.ERROR)
        outcome = await self._note(claim, answer)
        self.metrics.called_back(outcome, set_span_in_context(span))

    async def _note(self, claim: CallbackClaim, answer: _Answer) -> CallbackOutcome:
        callback, run_id = claim.callback, claim.run.id
        if not answer.error:
            await self.store.callback_delivered(claim)
            return "delivered"
        delay = self.callbacks.delay_after(callback.attempts, claim.age, answer.retry_after)
        is_dead = await self.store.callback_failed(claim, answer.error, delay=None if answer.is_final else delay)
        if not is_dead:
            _log.info("callback.failed run_id=%s attempt=%s: %s", run_id, callback.attempts, answer.error)
            return "failed"
        _log.error("callback.dead run_id=%s attempts=%s: %s", run_id, callback.attempts, answer.error)
        return "dead"

    async def _post(self, client: httpx2.AsyncClient, claim: CallbackClaim, span: Span) -> _Answer:
        from pellucid.models.http import retry_after

        callback = claim.callback
        address = self.callbacks.check(callback.url)
        span.set_attributes({semconv.SERVER_ADDRESS: address.host, semconv.SERVER_PORT: address.port})
        state = {**state_json(state_of(claim.run, claim.calls)), "version": callback.version}
        body = json.dumps(state, separators=(",", ":")).encode()
        message_id = uuid.uuid5(uuid.NAMESPACE_OID, f"{claim.run.id} {callback.version}").hex
        headers = {"Content-Type": "application/json", **self.callbacks.sign(f"msg_{message_id}", body)}
        propagate.inject(headers)
        with anyio.move_on_after(self.callbacks.timeout):
            # What was checked is what is called; the client's own log has no path and query; the answer's body stays.
            target = {"target": address.target.encode()}
            async with client.stream(
                "POST", address.origin, content=body, headers=headers, extensions=target
            ) as response:
                status = response.status_code
                span.set_attribute(semconv.HTTP_RESPONSE_STATUS_CODE, status)
                if status in _OK:
                    return _Answer()
                error = f"the receiver answered {status}"
                return _Answer(error, str(status), status == _GONE, retry_after(response.headers))
        return _Answer(f"the receiver did not answer within {self.callbacks.timeout:g} s", "timeout")


@asynccontextmanager
async def _client() -> AsyncIterator[httpx2.AsyncClient]:
    """Return a client that follows no redirects and keeps no cookies."""
    import httpx2

    from pellucid.models.http import trusted

    context = await anyio.to_thread.run_sync(trusted)  # loading certificates takes a while
    cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    agent = {"User-Agent": f"pellucid/{__version__}"}
    async with httpx2.AsyncClient(
        verify=context, follow_redirects=False, timeout=None, cookies=cookies, headers=agent
    ) as client:
        yield client
