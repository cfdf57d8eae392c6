"""Asynchronous tool calls of a run, and their results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import anyio
from opentelemetry.trace import SpanContext

from pellucid.approvals.external import CallStatus
from pellucid.messages import ToolCall
from pellucid.tools.tool import Execution
from pellucid.types import JSONValue


@dataclass(slots=True, kw_only=True, eq=False)
class AsyncCall:
    """A call that goes on after the model has read that it is running.

    Attributes:
        result_id: Id of the result: `async_tool_` and a UUID.
        request: The call as the model requested it.
        execution: Where it runs.
        started: Time of its dispatch, by `Scope.now()`.
        span: Context of the dispatching span.
        scope: Scope that cancels it; its deadline is that of the call.
        status: Outcome; None while it runs.
        response: Result, or the reason why there is none, as the model reads it.
        delivered: Whether the model has it.
        ended: Set when its task has ended.
    """

    result_id: str
    request: ToolCall
    execution: Execution
    started: int
    span: SpanContext
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    status: CallStatus | None = None
    response: JSONValue = None
    delivered: bool = False
    ended: anyio.Event = field(default_factory=anyio.Event)


class AsyncCalls:
    """Asynchronous calls of a run.

    Attributes:
        by_id: The calls by result id, in the order of their dispatch.
    """

    __slots__ = ("_settled", "by_id")

    def __init__(self) -> None:
        self.by_id: dict[str, AsyncCall] = {}
        self._settled: anyio.Event | None = None

    def running(self, execution: Execution | None = None) -> Iterator[AsyncCall]:
        """Yield the calls without a result, of one kind of execution or of both."""
        for call in self.by_id.values():
            if call.status is None and execution in (None, call.execution):
                yield call

    @property
    def open(self) -> bool:
        """Whether there are calls whose results the model does not have."""
        return any(not call.delivered for call in self.by_id.values())

    def settle(self, call: AsyncCall, status: CallStatus, response: JSONValue) -> None:
        """Set the result of a call, and wake up `wait`."""
        call.status, call.response = status, response
        if self._settled is not None:
            self._settled.set()

    async def wait(self) -> None:
        """Wait until a call has a result that the model does not have."""
        while not any(call.status is not None and not call.delivered for call in self.by_id.values()):
            self._settled = anyio.Event()
            await self._settled.wait()

    def take(self) -> list[AsyncCall]:
        """Return the calls with results that the model does not have, and mark them as delivered."""
        calls = [call for call in self.by_id.values() if call.status is not None and not call.delivered]
        for call in calls:
            call.delivered = True
        return calls
