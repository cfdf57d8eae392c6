"""The journal of a pass, in the store."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar, cast

from opentelemetry.trace import Span, get_current_span

from pellucid import semconv
from pellucid.approvals.checkpoint import current_trace, to_text
from pellucid.approvals.external import ExternalRequest
from pellucid.context import CancelToken
from pellucid.durable.runs.code import DIGEST, previous_digest
from pellucid.durable.runs.tokens import Completion
from pellucid.durable.store import CallRecord, Claim, Encoded, Lease, NewCall, RunStore
from pellucid.errors import DuplicateKey, Fenced, JournalError
from pellucid.run.journal import ANSWER, BEGUN, STARTED, CallAddress, Registration
from pellucid.types import JSONObject

T = TypeVar("T")


class StoreJournal:
    """Journal of one pass. Each write requires the pass's claim and renews its lease.

    Attributes:
        run_id: Id of the durable run.
        namespace: Namespace of the ids of calls and approvals, the same in all passes of the run.
        is_fenced: Whether a write or a renewal has found that another worker has claimed the run.
        cancel_reason: Reason given to `cancel`, once a write has seen it; the pass is then being cancelled.
        trace: Trace context of the first step; None before.
    """

    def __init__(
        self,
        store: RunStore,
        claim: Claim,
        token: CancelToken,
        completion: Completion | None = None,
        digest: str | None = None,
    ) -> None:
        self.run_id = claim.run.id
        self.namespace = uuid.uuid5(uuid.NAMESPACE_OID, claim.run.id)
        self.cancel_reason: str | None = None
        self.is_fenced = False
        self.trace: dict[str, str] | None = None
        self._store = store
        self._claim = claim
        self._token = token
        self._completion = completion
        self._calls = {call.id: call for call in claim.calls}
        self._registered_now: set[str] = set()
        self._expiries = {call.id: call.expires_at for call in claim.calls}
        self._now = claim.run.updated_at  # by the clock of the store
        self._failure: JournalError | None = None
        self._digest = digest
        self._changed: list[JSONObject] = []
        if digest is not None and (previous := previous_digest(claim)) not in (None, digest):
            self._changed.append({"type": "run.code_changed", "digest": digest, "previous_digest": previous})

    def is_continued_elsewhere(self) -> bool:
        """Return whether another worker has claimed the run."""
        return self.is_fenced

    async def write(self, step: str, key: str, value: Mapping[str, Any], *, is_progress: bool = True) -> None:
        """Append a step; without an event, if it is no progress.

        Raises:
            JournalError: nothing was written.
            CheckpointError: the value cannot be turned into JSON.
        """
        self.trace = self.trace or current_trace()
        name = f"{step}:{key}"
        unique, entry = self._entry(step, key, value)
        event: JSONObject = {"type": f"step.{step}", "key": key}
        if step == BEGUN and not value.get("is_nested"):
            self._describe(get_current_span())
        if not is_progress:
            self.update(await self._guarded(name, partial(self._store.note, self._claim, unique, entry)))
            return
        append = partial(self._store.append, self._claim, unique, entry, [*self._changed, event])
        self._changed = []
        self.update(await self._guarded(name, append))

    def _describe(self, span: Span) -> None:
        """Add the code of the agent to the span of a pass."""
        if self._digest is not None:
            span.set_attribute(semconv.AGENT_DIGEST, self._digest)
        for event in self._changed:
            span.set_attribute(semconv.AGENT_PREVIOUS_DIGEST, cast("str", event["previous_digest"]))

    def _entry(self, step: str, key: str, value: Mapping[str, Any]) -> tuple[str, Encoded]:
        """Return key and value of a journal entry."""
        # A call can start again in a later claim, when its sub-agent resumes; each answer is given once.
        unique = f"{step}:{key}" if step == ANSWER else f"{step}:{key}:{self._claim.run.fence}"
        if step == BEGUN:  # whether the pass before was killed, and when its lease had ended
            value = {**value, "expired_leases": self._claim.expired_leases, "due_at": self._claim.run.due_at}
        if step in (BEGUN, ANSWER) and self._digest is not None:
            value = {**value, DIGEST: self._digest}
        return unique, Encoded(to_text({"step": step, **value}))

    async def register(self, request: ExternalRequest, key: str, started: Mapping[str, Any]) -> Registration:
        """Register a call before its dispatch; return its state in an earlier pass.

        Raises:
            JournalError: nothing was written.
        """
        call = self._calls.get(request.result_id)
        is_known = call is not None
        call = call or await self._registered(request, key, started)
        if call is None or (call.dispatched_at is None and call.status == "processing"):
            if is_known:
                await self.write(STARTED, key, started, is_progress=False)
            return "new"
        return "settled" if call.dispatched_at is None else "dispatched"

    async def _registered(self, request: ExternalRequest, key: str, started: Mapping[str, Any]) -> CallRecord | None:
        """Register a call; return the one of this id that exists, or None if it is new."""
        timeout = request.expires_at - request.dispatched_at if request.expires_at is not None else None
        call = NewCall(
            id=request.result_id,
            tool=request.tool_name,
            tool_call_id=request.tool_call_id,
            request={"arguments": request.arguments},
            timeout=timeout,
            trace={**request.trace},
        )
        event: JSONObject = {"type": "async_tool.registered", "result_id": call.id, "tool": call.tool}
        name = f"register {call.id}"
        self._registered_now.add(call.id)
        try:
            register = partial(self._store.register, self._claim, [call], [*self._changed, event])
            self._changed = []
            unique, entry = self._entry(STARTED, key, started)
            lease = await self._guarded(name, partial(register, entries={unique: entry}))
            self.update(lease)
            self._expiries[call.id] = self._now + timeout if timeout is not None else None
        except DuplicateKey:
            return await self._guarded(name, partial(self._store.call, call.id))
        return None

    def has(self, call_id: str) -> bool:
        """Return whether an earlier pass or this one has registered a call."""
        return call_id in self._calls or call_id in self._registered_now

    @property
    def pending_calls(self) -> set[str]:
        """Ids of the calls that were pending when the pass started, or were registered since."""
        return {*(call.id for call in self._calls.values() if call.status == "processing"), *self._registered_now}

    async def dispatched(self, result_id: str) -> None:
        """Mark a call as dispatched.

        Raises:
            JournalError: nothing was written.
        """
        await self._guarded(f"dispatched {result_id}", partial(self._store.mark_dispatched, result_id))

    def completion_of(self, request: ExternalRequest) -> CallAddress:
        """Return address and token of a registered call, None without a server, and its expiry by the store's clock."""
        call_id, now = request.result_id, self._now
        expires_at = self._expiries.get(call_id)
        if self._completion is None:
            return None, None, expires_at
        return *self._completion.address(call_id, self._claim.run.id, expires_at, now=now), expires_at

    def update(self, lease: Lease) -> None:
        """Note the time of the store, and cancel the pass if the run was cancelled."""
        self._now = lease.until - self._claim.lease
        if lease.cancel_reason is not None and self.cancel_reason is None:
            self.cancel_reason = lease.cancel_reason
            self._token.cancel(lease.cancel_reason)

    async def _guarded(self, step: str, operation: Callable[[], Awaitable[T]]) -> T:
        """Write, unless an earlier write has failed: no step may follow one that is missing.

        Raises:
            DuplicateKey: the step was written before.
            JournalError: nothing was written.
        """
        if self._failure is not None:
            raise self._failure
        try:
            return await operation()
        except DuplicateKey:
            raise
        except Exception as error:  # whatever it is, it must not become the result of a tool
            self.is_fenced = self.is_fenced or isinstance(error, Fenced)
            self._failure = JournalError(step, is_fenced=isinstance(error, Fenced))
            raise self._failure from error
