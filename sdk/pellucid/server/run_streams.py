"""Runs in endpoints of an application: as a stream of events, and awaited."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import anyio
from starlette.background import BackgroundTask
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pellucid.agent import Agent
from pellucid.durable import RunState
from pellucid.errors import ConfigError, ConversationBusy, RunCancelled
from pellucid.run.state import Run
from pellucid.run.stream import RunStream
from pellucid.server.attached_runs import EventWriter, cancel_with_client, completed_state, failed_state, next_event
from pellucid.server.draining import SHUTDOWN, draining_of
from pellucid.server.event_json import EventView, Select
from pellucid.text import excerpt

CLIENT_CLOSED_REQUEST: Final = 499
"""Status of a request whose client has left, as nginx logs it; nobody receives it."""

_WAITS: Final = "the run waits for approvals; the result of its stream has the checkpoint with which to resume it"
_BUSY: Final = "another run of this conversation has not ended; send it again when that run has ended"


class EventStreamResponse(Response):
    """The events of a run as server-sent events (WHATWG HTML, section 9.2), for endpoints of Starlette and FastAPI.

    ```python
    @app.get("/answer")
    async def answer(question: str) -> EventStreamResponse:
        return EventStreamResponse(agent.stream(question))
    ```

    The client gets what an end user may see: the text of answers, names of tools, approvals without arguments, and the
    end. `select=` gives it more. The last event is `run`, with the state of the run: `status`, `output`. It has no
    messages: the application decides who reads them. Also a run that fails ends with it; the text of its error is in
    telemetry, and in the exception that reading `stream.result` raises. The run starts with the answer, in the trace
    of the request. A client that leaves cancels it, and so does a server that shuts down within `drain_at_signals`. A
    client that connects again with `Last-Event-ID`, as browsers do, is answered 204, which ends its attempts: the run
    is not started a second time.

    Args:
        stream: Result of `agent.stream(...)` or `session.stream(...)`. The conversation of a session has the new
            messages before the last event is sent. While another run of it has not ended, the answer is 409.
        select: `"public"`, or `"all"` events with all their fields; a set of names of events, or a function that
            accepts an event, chooses events that are sent with all their fields. The state at the end is whole, with
            error, usage and arguments of approvals, with `"all"` and with the name `run`.
        heartbeat: Seconds between comments while there are no events; they keep connections open, and notice clients
            that have left. None for no comments.
        headers: Additional headers.
        background: Task that runs after the answer, also when the client has left; it may read `stream.result`.

    Raises:
        ConfigError: `stream`, `select` or `heartbeat` is something else.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        stream: RunStream[Any] | AbstractAsyncContextManager[RunStream[Any]],
        *,
        select: Select = "public",
        heartbeat: float | None = 15.0,
        headers: Mapping[str, str] | None = None,
        background: BackgroundTask | None = None,
    ) -> None:
        super().__init__(background=background)
        _check(stream, heartbeat)
        self._view = EventView(select)
        self._stream = stream
        self._heartbeat = heartbeat
        self._additional = dict(headers or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run, and send the events.

        Raises:
            HTTPException: 409, another run of the session has not ended; 503, the server shuts down. Nothing was sent.
            Exception: the stream could not be entered, such as a `StoreError` of a session; nothing was sent.
        """
        if "last-event-id" in Headers(scope=scope):
            await Response(status_code=204)(scope, receive, send)
            return
        ended: RunState | Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_with_client, receive, tasks.cancel_scope)
            writer = EventWriter(send, self._additional, view=self._view, is_numbered=True)
            ended = await self._followed(scope, writer)
            if isinstance(ended, RunState):
                await writer.end(ended)
            tasks.cancel_scope.cancel()
        if isinstance(ended, Exception):  # raised outside of the task group, which would wrap it
            raise ended
        if self.background is not None:
            await self.background()

    async def _followed(self, scope: Scope, writer: EventWriter) -> RunState | Exception:
        """Write the events of the run, and return the state in which it has ended, or why it was not started."""
        run: Run | None = None
        state: RunState | None = None
        failure: Exception | None = None
        with draining_of(scope).interruptible():
            try:
                async with self._stream as events:
                    run = events._run  # noqa: SLF001  (not public: its capture policy decides about the text of errors)
                    while (event := await next_event(events, self._heartbeat)) is not None:
                        await writer.write(event)
                    state = completed_state(run, events.result, _WAITS)
            except ConversationBusy as error:
                failure = error if run is not None else HTTPException(409, _BUSY)
            except Exception as error:  # noqa: BLE001  (its text is the state of the run)
                failure = error
        if run is None:
            return failure or HTTPException(503, SHUTDOWN)
        if failure is not None or state is None:
            state = failed_state(run, failure or RunCancelled(run.scope.agent, SHUTDOWN))
        return replace(state, messages=(), identity=None)


def _check(stream: Any, heartbeat: Any) -> None:
    if not isinstance(stream, AbstractAsyncContextManager) or isinstance(stream, Agent):
        shown = excerpt(repr(stream))
        raise ConfigError(f"EventStreamResponse(stream={shown}): give what agent.stream(...) returned")
    is_number = isinstance(heartbeat, int | float) and not isinstance(heartbeat, bool)
    if heartbeat is not None and not (is_number and 0 < heartbeat < math.inf):
        raise ConfigError(f"EventStreamResponse(heartbeat={heartbeat!r}): must be a number of seconds above 0, or None")


@asynccontextmanager
async def cancel_on_disconnect(request: Request) -> AsyncIterator[None]:
    """Cancel the block when the client leaves, or the server shuts down within `drain_at_signals`.

    ```python
    @app.post("/answer")
    async def answer(question: Question, request: Request) -> Answer:
        async with cancel_on_disconnect(request):
            result = await agent.run(question.text)
        return Answer(text=result.output)
    ```

    Read the body of the request before the block.

    Raises:
        HTTPException: 499, the client has left; 503, the server shuts down.
    """
    draining = draining_of(request.scope)
    failure: Exception | None = None
    is_done = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel_with_client, request.receive, tasks.cancel_scope)
        with draining.interruptible():
            try:
                yield
            except Exception as error:  # noqa: BLE001  (raised again outside of the task group, which would wrap it)
                failure = error
            is_done = True
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if not is_done and draining.is_active:
        raise HTTPException(503, SHUTDOWN)
    if not is_done:
        raise HTTPException(CLIENT_CLOSED_REQUEST, "the client has left")
