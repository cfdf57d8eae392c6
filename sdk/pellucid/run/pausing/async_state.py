"""Asynchronous tool calls of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import anyio
from opentelemetry.context import Context

from pellucid.approvals.external import CallStatus, EndedCall, ExternalRequest, ExternalResult
from pellucid.tools.tool import Execution
from pellucid.types import JSONValue


class CallFacts(NamedTuple):
    """Identity of an asynchronous call, in telemetry and for the model."""

    result_id: str
    tool_name: str
    tool_call_id: str
    execution: Execution


@dataclass(slots=True, kw_only=True, eq=False)
class AsyncCall:
    """A call that continues after the model has read that it is running.

    Attributes:
        facts: Ids and names of the call.
        started: Time of its dispatch, in nanoseconds since the epoch.
        dispatch: OpenTelemetry context of the dispatching span.
        request: Request for its result, if another process does the work.
        scope: Scope that cancels it, if it runs in the background of this run; its deadline is that of the call.
        status: Outcome; None while it runs.
        output: Output, or the reason why there is none, as the model reads it.
        delivered: Whether the model has it.
        ended: Set when its task has ended.
    """

    facts: CallFacts
    started: int
    dispatch: Context
    request: ExternalRequest | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    status: CallStatus | None = None
    output: JSONValue = None
    delivered: bool = False
    ended: anyio.Event = field(default_factory=anyio.Event)

    @property
    def takes_place(self) -> bool:
        """True if the result takes the place of the call's result."""
        return self.request is not None and self.request.takes_place


background_call: Final[ContextVar[str]] = ContextVar("pellucid_background_call", default="")
"""Result id of the call in the background to which the current task belongs."""


class AsyncCalls:
    """Asynchronous calls of a run.

    Attributes:
        by_id: The calls by result id, in the order of their dispatch.
        nested: External calls of paused sub-agents by result id; cancelled if the run ends without a checkpoint.
        paused: External calls without a result that the checkpoint of this run has, if it paused.
        ended: External calls with a result by result id, also those of sub-agents.
    """

    __slots__ = ("_settled", "by_id", "ended", "nested", "paused")

    def __init__(self) -> None:
        self.by_id: dict[str, AsyncCall] = {}
        self.nested: dict[str, AsyncCall] = {}
        self.paused: list[AsyncCall] = []
        self.ended: dict[str, EndedCall] = {}
        self._settled: anyio.Event | None = None

    @property
    def running(self) -> list[AsyncCall]:
        """Calls without a result in the background of this run."""
        return [call for call in self._unsettled() if call.request is None]

    @property
    def not_ended(self) -> list[AsyncCall]:
        """Calls in the background of this run whose tasks have not ended."""
        return [call for call in self.by_id.values() if call.request is None and not call.ended.is_set()]

    @property
    def external(self) -> list[AsyncCall]:
        """Calls without a result in other processes."""
        return [call for call in self._unsettled() if call.request is not None]

    @property
    def is_open(self) -> bool:
        """True if there are calls whose results the model does not have."""
        return any(not call.delivered and not call.takes_place for call in self.by_id.values())

    def settle(self, call: AsyncCall, status: CallStatus, output: JSONValue) -> None:
        """Set the result of a call, and wake up `wait`."""
        call.status, call.output = status, output
        if self._settled is not None:
            self._settled.set()

    def end(self, request: ExternalRequest, result: ExternalResult) -> None:
        """Note that an external call has its result, so that another one is late."""
        self.ended[request.result_id] = EndedCall(
            result_id=request.result_id,
            tool_name=request.tool_name,
            tool_call_id=request.tool_call_id,
            digest=result.digest,
            trace=request.trace,
        )

    async def wait(self) -> None:
        """Wait until a call has a result that the model does not have."""
        while not self._deliverable():
            self._settled = anyio.Event()
            await self._settled.wait()

    async def all_ended(self) -> None:
        """Wait until no call runs in the background of this run."""
        for call in self.running:
            await call.ended.wait()

    def pause(self, requests: Iterable[ExternalRequest]) -> None:
        """Release the calls that a checkpoint has; `requests` are those of sub-agents."""
        nested = (self.nested.pop(request.result_id, None) for request in requests)
        self.paused = [*self.external, *(call for call in nested if call is not None)]
        self.by_id = {result_id: call for result_id, call in self.by_id.items() if call.request is None}

    def take(self) -> list[AsyncCall]:
        """Return the calls with results that the model does not have, and mark them as delivered."""
        calls = self._deliverable()
        for call in calls:
            call.delivered = True
        return calls

    def _deliverable(self) -> list[AsyncCall]:
        return [call for call in self.by_id.values() if call.status and not call.delivered and not call.takes_place]

    def _unsettled(self) -> Iterator[AsyncCall]:
        return (call for call in self.by_id.values() if call.status is None)
