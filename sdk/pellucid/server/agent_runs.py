"""Runs without a store: each lives as long as its request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import anyio
from opentelemetry.trace import format_trace_id, get_current_span
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pellucid.agent import Agent
from pellucid.durable_runs import RunState
from pellucid.durable_runs.states import state_json
from pellucid.errors import RunCancelled, StoreNeeded
from pellucid.events import Event, InferenceStarted
from pellucid.failures import error_type_of
from pellucid.options import RunOptions
from pellucid.run.loop import execute
from pellucid.run.outcomes import RunResult
from pellucid.run.start import conversation
from pellucid.run.state import Run
from pellucid.run.stream import RunStream
from pellucid.run.tool_results import to_json
from pellucid.server.answers import JSONAnswer
from pellucid.server.bodies import BodyReader
from pellucid.server.callers import Authenticate, caller_of
from pellucid.server.draining import Draining
from pellucid.server.event_stream import BEAT, HEADERS, encoded
from pellucid.server.problems import Problem, store_needed
from pellucid.server.submissions import SubmitBody, agent_named, input_of
from pellucid.telemetry import Listeners
from pellucid.tools.tool import AgentTool, Tool

_WAITS: Final = (
    "the run waits for approvals, and this server has no store to keep it in; serve the agent with a store to decide "
    "about them"
)
_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def refuse_external(tools: Iterable[Tool]) -> None:
    """Refuse tools whose work another process does, also those of agents that are tools.

    Raises:
        StoreNeeded: there is one.
    """
    for tool in tools:
        if tool.execution == "external-dispatch":
            raise StoreNeeded(tool.name)
        if isinstance(tool, AgentTool):
            refuse_external(tool.tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEndpoints:
    """`POST /runs` of a server without a store.

    Attributes:
        agents: The agents by name.
        authenticate: Returns the identity of a caller.
        deps: Value for tools.
        heartbeat: Seconds between comments in a stream without events.
        timeout: Seconds that a run may take.
        bodies: Reader of bodies.
        draining: Ends runs when the server shuts down.
    """

    agents: Mapping[str, Agent[Any, Any]]
    authenticate: Authenticate
    deps: Any
    heartbeat: float
    timeout: float
    bodies: BodyReader
    draining: Draining

    def routes(self) -> list[Route]:
        """Return the routes; those of runs in a store say that there is none."""
        return [
            Route("/runs", self._run, methods=["POST"]),
            Route("/runs/{path:path}", _no_store, methods=_METHODS),
            Route("/async-tools/{path:path}", _no_store, methods=_METHODS),
        ]

    async def _run(self, request: Request) -> AttachedRun:
        caller = await caller_of(request, self.authenticate)
        if "respond-async" in request.headers.get("prefer", ""):
            raise store_needed("Prefer")
        if "idempotency-key" in request.headers:
            raise store_needed("Idempotency-Key")
        body = await self.bodies.read(request, SubmitBody)
        if body.callback_url is not None:
            raise store_needed("callbackUrl")
        agent = self.agents[agent_named(body.agent, list(self.agents))]
        identity = replace(caller, conversation_id=body.conversation_id or caller.conversation_id)
        options: RunOptions = {"identity": identity}
        is_streamed = "text/event-stream" in request.headers.get("accept", "")
        run = agent._create_run(  # noqa: SLF001  (not public: what a run may be offered is checked by the server)
            conversation((), input_of(body)),
            self.deps,
            options,
            Listeners() if is_streamed else None,
            check_tools=refuse_external,
        )
        return AttachedRun(run, heartbeat=self.heartbeat, timeout=self.timeout, draining=self.draining)


def _no_store(_request: Request) -> Response:
    raise Problem(404, "this server has no store: a run ends with its request; serve the agents with a store")


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
            tasks.start_soon(_cancel_with_client, receive, tasks.cancel_scope)
            try:
                await (self._answer(scope, receive, send) if self._run.reader is None else self._stream(send))
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
        writer = _EventWriter(send)
        try:
            state = await self._ended(lambda: self._followed(writer))
        except StoreNeeded as error:
            if not writer.is_open:
                raise
            state = _failed(self._run, error)
        await writer.write(encoded("run", state_json(state)))
        await writer.close()

    async def _ended(self, follow: Callable[[], Awaitable[RunResult[Any]]]) -> RunState:
        """Return the state in which the run has ended.

        Raises:
            StoreNeeded: a tool of the agent needs a store.
        """
        state: RunState | None = None
        with self._draining.interruptible(), anyio.move_on_after(self._timeout) as limit:
            try:
                state = _completed(self._run, await follow())
            except StoreNeeded:
                raise
            except Exception as error:  # noqa: BLE001  (its text is the state of the run)
                state = _failed(self._run, error)
        if state is not None:
            return state
        if limit.cancelled_caught:
            return _failed(self._run, TimeoutError(f"the run took longer than {self._timeout:g} s"))
        return _failed(self._run, RunCancelled(self._run.scope.agent, "the server shuts down"))

    async def _followed(self, writer: _EventWriter) -> RunResult[Any]:
        """Write the events of the run, and return its result. Until the model is called, they are held back."""
        async with RunStream[Any](self._run) as events:
            while True:
                event: Event | None = None
                with anyio.move_on_after(self._heartbeat):
                    try:
                        event = await anext(events)
                    except StopAsyncIteration:
                        return events.result
                if event is None:
                    await writer.write(BEAT)
                elif writer.is_open or isinstance(event, InferenceStarted):
                    await writer.write(_encoded(event))
                else:
                    writer.hold(_encoded(event))


class _EventWriter:
    """Writer of a stream of events, which starts with the first one that is written.

    Attributes:
        is_open: Whether the answer has started.
    """

    def __init__(self, send: Send) -> None:
        self.is_open = False
        self._send = send
        self._held: list[bytes] = []

    def hold(self, chunk: bytes) -> None:
        """Write a chunk with the next one."""
        self._held.append(chunk)

    async def write(self, chunk: bytes) -> None:
        """Write a chunk, after those that were held back."""
        if not self.is_open:
            self.is_open = True
            start = Response(media_type="text/event-stream", headers=HEADERS)
            headers = [header for header in start.raw_headers if header[0] != b"content-length"]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        body, self._held = b"".join([*self._held, chunk]), []
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def close(self) -> None:
        """End the answer."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


async def _cancel_with_client(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel when the client has left; what it still sends is ignored."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _encoded(event: Event) -> bytes:
    return encoded(event.name, {name: value for name, value in asdict(event).items() if name != "identity"})


def _completed(run: Run, result: RunResult[Any]) -> RunState:
    """Return the state of a run that has a result.

    Raises:
        ValueError, RecursionError: the output cannot be turned into JSON.
    """
    state = RunState(
        run_id=run.scope.run_id, agent=run.scope.agent, status="completed", usage=result.usage, trace_id=result.trace_id
    )
    if result.checkpoint is not None:
        return replace(
            state, status="waiting", approvals=result.approvals, error=_WAITS, error_type=StoreNeeded.error_type
        )
    return replace(state, output=to_json(result.output)[0], stop_reason=result.stop_reason, messages=result.messages)


def _failed(run: Run, error: Exception) -> RunState:
    """Return the state of a run that has failed, or was cancelled."""
    span, error_type = get_current_span().get_span_context(), error_type_of(error)
    return RunState(
        run_id=run.scope.run_id,
        agent=run.scope.agent,
        status="cancelled" if isinstance(error, RunCancelled) else "failed",
        error=run.scope.text_of(error) or error_type,  # no text is recorded in the mode `metadata`
        error_type=error_type,
        trace_id=format_trace_id(span.trace_id) if span.is_valid else None,
    )
