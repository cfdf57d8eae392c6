"""Runs that are attached to a request: they end when it does, and are cancelled when the client leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import anyio
from opentelemetry.trace import format_trace_id, get_current_span
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pellucid.durable import RunState
from pellucid.durable.states.bodies import state_json
from pellucid.durable.states.records import known_trace
from pellucid.errors import RunCancelled, StoreNeeded
from pellucid.events import Event, InferenceStarted
from pellucid.failures import error_type_of
from pellucid.run.loop import execute
from pellucid.run.outcomes import RunResult
from pellucid.run.state import Run
from pellucid.run.stream import RunStream
from pellucid.run.tool_results import to_json
from pellucid.server.answers import JSONAnswer
from pellucid.server.draining import SHUTDOWN, Draining
from pellucid.server.event_json import EventView
from pellucid.server.event_stream import BEAT, HEADERS, encoded

_WAITS: Final = (
    "the run waits for approvals, and this server has no store to keep it in; serve the agent with a store to decide "
    "about them"
)


class AttachedRun(Response):
    """The answer to a request: the state of its run, after its events if it is streamed. It cancels with the client.

    Args:
        run: The run.
        heartbeat: Seconds between comments in a stream without events.
        timeout: Seconds that the run may take.
        draining: Ends the run when the server shuts down.
    """

    def __init__(self, run: Run, *, heartbeat: float, timeout: float, draining: Draining) -> None:
        super().__init__()
        self._run = run
        self._heartbeat = heartbeat
        self._timeout = timeout
        self._draining = draining

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run, and answer.

        Raises:
            StoreNeeded: the agent cannot run without a store; nothing was sent.
        """
        refusal: StoreNeeded | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_with_client, receive, tasks.cancel_scope)
            try:
                await (self._answer(scope, receive, send) if self._run.caller.stream is None else self._stream(send))
            except StoreNeeded as error:
                refusal = error
            tasks.cancel_scope.cancel()
        if refusal is not None:
            raise refusal

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = await self._ended(lambda: execute(self._run))
        status = 503 if state.status == "cancelled" else 200
        await JSONAnswer(state_json(state), status)(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        writer = EventWriter(send, {})
        try:
            state = await self._ended(lambda: self._followed(writer))
        except StoreNeeded as error:
            if not writer.is_open:
                raise
            state = failed_state(self._run, error)
        await writer.end(state)

    async def _ended(self, follow: Callable[[], Awaitable[RunResult[Any]]]) -> RunState:
        """Return the state in which the run has ended.

        Raises:
            StoreNeeded: a tool of the agent needs a store.
        """
        state: RunState | None = None
        with self._draining.interruptible(), anyio.move_on_after(self._timeout) as limit:
            try:
                state = completed_state(self._run, await follow(), _WAITS)
            except StoreNeeded:
                raise
            except Exception as error:  # noqa: BLE001  (its text is the state of the run)
                state = failed_state(self._run, error)
        if state is not None:
            return state
        if limit.cancelled_caught:
            return failed_state(self._run, TimeoutError(f"the run took longer than {self._timeout:g} s"))
        return failed_state(self._run, RunCancelled(self._run.scope.agent, SHUTDOWN))

    async def _followed(self, writer: EventWriter) -> RunResult[Any]:
        """Write the events of the run, and return its result. Until the model is called, they are held back."""
        async with RunStream[Any](self._run) as events:
            while (event := await next_event(events, self._heartbeat)) is not None:
                if isinstance(event, Event) and not (writer.is_open or isinstance(event, InferenceStarted)):
                    writer.hold(event)
                else:
                    await writer.write(event)
            return events.result


class Beat:
    """Stands for an event when there is none for a while."""


async def next_event(events: RunStream[Any], heartbeat: float | None) -> Event | Beat | None:
    """Return the next event, `Beat` if there is none within `heartbeat` seconds, or None at the end.

    Raises:
        Exception: the run has failed.
    """
    with anyio.move_on_after(heartbeat):
        return await anext(events, None)
    return Beat()


class EventWriter:
    """Writer of the server-sent events of a run. The answer starts with the first one that is written.

    Args:
        send: Sends messages to the server.
        headers: Additional headers.
        view: View of events and state that the client gets.
        is_numbered: Whether events have ids: 1, 2, …

    Attributes:
        is_open: Whether the answer has started.
    """

    def __init__(
        self, send: Send, headers: Mapping[str, str], *, view: EventView | None = None, is_numbered: bool = False
    ) -> None:
        self.is_open = False
        self._view = view if view is not None else EventView()
        self._send = send
        self._headers = headers
        self._is_numbered = is_numbered
        self._count = 0
        self._held: list[bytes] = []

    def hold(self, event: Event) -> None:
        """Write an event with the next one."""
        self._held.append(self._encoded(event))

    async def write(self, event: Event | Beat) -> None:
        """Write an event, after those that were held back."""
        chunk = BEAT if isinstance(event, Beat) else self._encoded(event)
        if chunk:
            await self._write(chunk)

    async def end(self, state: RunState) -> None:
        """Write the state of the run as the last event, and end the answer."""
        await self._write(encoded("run", self._view.state(state_json(state)), self._next_id()))
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, chunk: bytes) -> None:
        if not self.is_open:
            self.is_open = True
            start = Response(media_type="text/event-stream", headers={**HEADERS, **self._headers})
            headers = [header for header in start.raw_headers if header[0] != b"content-length"]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        body, self._held = b"".join([*self._held, chunk]), []
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    def _encoded(self, event: Event) -> bytes:
        data = self._view.event(event)
        return encoded(event.name, data, self._next_id()) if data is not None else b""

    def _next_id(self) -> int | None:
        self._count += 1
        return self._count if self._is_numbered else None


async def cancel_with_client(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel when the client has left; what it still sends is ignored."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def completed_state(run: Run, result: RunResult[Any], waits: str) -> RunState:
    """Return the state of a run that has a result; `waits` says why nobody can decide about its approvals here.

    Raises:
        ValueError, RecursionError: the output cannot be turned into JSON.
    """
    state = RunState(
        run_id=run.scope.run_id,
        agent=run.scope.agent,
        status="completed",
        usage=result.usage,
        trace_id=known_trace(result.trace_id),
        identity=run.scope.identity,
    )
    if result.checkpoint is not None:
        return replace(
            state, status="waiting", approvals=result.approvals, error=waits, error_type=StoreNeeded.error_type
        )
    return replace(state, output=to_json(result.output)[0], stop_reason=result.stop_reason, messages=result.messages)


def failed_state(run: Run, error: Exception) -> RunState:
    """Return the state of a run that has failed, or was cancelled."""
    span, error_type = get_current_span().get_span_context(), error_type_of(error)
    return RunState(
        run_id=run.scope.run_id,
        agent=run.scope.agent,
        status="cancelled" if isinstance(error, RunCancelled) else "failed",
        error=run.scope.text_of(error) or error_type,  # no text is recorded in the mode `metadata`
        error_type=error_type,
        trace_id=format_trace_id(span.trace_id) if span.is_valid else None,
        identity=run.scope.identity,
    )
