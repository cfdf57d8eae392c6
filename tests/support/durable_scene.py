"""A durable run with every kind of call, and a process that works on it and can be killed at any point of it."""

from __future__ import annotations

import inspect
import json
import os
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

from pellucid import Agent, Decision, Message, ModelError, TelemetryOptions, Tool, ToolCall, ToolResult, semconv
from pellucid.durable import DurableRuns, RetryPolicy, open_store
from pellucid.testing import FunctionModel
from pellucid_exporters.recorder.providers import make_tracer_provider
from support.nats_faults import FaultyQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid import ToolContext
    from pellucid.durable import RunStore
    from pellucid.models import ModelRequest

FIRST = ("safe", "once", "job", "owed", "pay", "ask")
"""Tools of the first message: idempotent, not idempotent, two external ones, one with approval, and a sub-agent."""


@dataclass
class Journey:
    """Events outside of the store, in a file that survives the process.

    Attributes:
        kill_at: Number of the point at which the process kills itself; 0 for never.
        is_troubled: Whether the model fails once before its second answer and once before its third.
        errors: Share of the model's calls that fail, at random.
        names: Names of the points that this process has passed.
    """

    path: Path
    kill_at: int = 0
    points: int = 0
    is_troubled: bool = False
    errors: float = 0.0
    names: list[str] = field(default_factory=list)

    def point(self, name: str) -> None:
        """Pass a point at which the process may be killed."""
        self.points += 1
        self.names.append(name)
        if self.points == self.kill_at:
            self.note(f"killed at {name}")
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, line: str) -> None:
        """Add a line to the file."""
        _append(self.path, line)

    def began(self, call_id: str) -> None:
        """Note that a tool began, with its span."""
        span_id = format_span_id(get_current_span().get_span_context().span_id)
        _append(self.path.with_suffix(".ledger"), json.dumps({"call": call_id, "span": span_id}))

    @property
    def ledger(self) -> list[dict[str, str]]:
        """Id of the call and of the span of each tool that began."""
        return _read(self.path.with_suffix(".ledger"))

    @property
    def spans(self) -> list[dict[str, Any]]:
        """The spans that all processes of the run have exported."""
        return _read(self.path.with_suffix(".spans"))

    def telemetry(self) -> TelemetryOptions:
        """Return a pipeline that exports each span before the process does anything else."""
        provider = make_tracer_provider(None, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(SpanFile(self.path.with_suffix(".spans"))))
        return TelemetryOptions(tracer_provider=provider)

    @property
    def lines(self) -> list[str]:
        """The lines so far."""
        return self.path.read_text().splitlines() if self.path.exists() else []

    def counts(self) -> Counter[str]:
        """Return how often each line was written."""
        return Counter(self.lines)


class SpanFile(SpanExporter):
    """Exporter into a file that survives the process."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write what the checks of traces need."""
        for span in spans:
            attributes = span.attributes or {}
            assert span.context is not None
            fields = {
                "name": span.name,
                "trace": format_trace_id(span.context.trace_id),
                "span": format_span_id(span.context.span_id),
                "parent": format_span_id(span.parent.span_id) if span.parent is not None else None,
                "links": [format_span_id(link.context.span_id) for link in span.links],
                "start": span.start_time,
                "end": span.end_time,
                "outcome": attributes.get(semconv.OUTCOME),
                "error": attributes.get(semconv.ERROR_TYPE),
                "call": attributes.get(semconv.TOOL_CALL_ID),
                "run": attributes.get(semconv.RUN_ID),
                "durable run": attributes.get(semconv.DURABLE_RUN_ID),
                "digest": attributes.get(semconv.AGENT_DIGEST),
            }
            _append(self._path, json.dumps(fields))
        return SpanExportResult.SUCCESS


def _append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def scene(journey: Journey, telemetry: TelemetryOptions | None = None) -> Agent:
    """Return an agent that calls all tools, then one again, and answers with what it got."""

    def work(name: str) -> Callable[[Any, ToolContext], Any]:
        async def run(arguments: Any, ctx: ToolContext) -> str | None:
            journey.point(f"{name} begins")
            suffix = f" {ctx.external.result_id}" if ctx.external is not None else ""
            principal = ctx.identity.principal if ctx.identity is not None else None
            prefix = f"{principal} " if principal is not None else ""
            journey.note(f"{prefix}{name} {ctx.tool_call_id}{suffix}")
            journey.began(ctx.tool_call_id)
            journey.point(f"{name} ends")
            return f"{name} done"

        return run

    def answer(request: ModelRequest) -> Any:
        results = [part for message in request.messages for part in message.parts if isinstance(part, ToolResult)]
        iteration = sum(message.role == "assistant" and not _is_delivery(message) for message in request.messages) + 1
        journey.point(f"model {iteration} begins")
        if journey.is_troubled and iteration > 1 and not journey.counts()[f"down {iteration}"]:
            journey.note(f"down {iteration}")
            raise ModelError("m", "down", error_kind="unavailable")
        if random.random() < journey.errors:
            raise ModelError("m", "down", error_kind="unavailable")
        journey.note(f"model {iteration}")
        journey.point(f"model {iteration} ends")
        if iteration == 1:
            return [ToolCall(name, {"input": "?"} if name == "ask" else {}, f"c-{name}") for name in FIRST]
        if iteration == 2:
            return [ToolCall("once", {}, "c-again")]
        return f"{len(results)} results"

    def inner(request: ModelRequest) -> Any:
        if len(request.messages) == 1:
            return [ToolCall("job", {}, "c-inner")]
        return "inner"

    external = {"execution": "external-dispatch"}
    job = Tool(name="job", run=work("job"), **external)  # type: ignore[arg-type]
    clerk = Agent("clerk", model=FunctionModel(inner), tools=[job], description="Asks.")
    tools = [
        Tool(name="safe", run=work("safe"), idempotent=True),
        Tool(name="once", run=work("once")),
        job,
        Tool(name="owed", run=work("owed"), pending="wait", **external),  # type: ignore[arg-type]
        Tool(name="pay", run=work("pay"), needs_approval=True),
        clerk.as_tool("ask"),
    ]
    return Agent("scene", model=FunctionModel(answer), tools=tools, telemetry=telemetry)


def _is_delivery(message: Message) -> bool:
    return any(call.name == "async_status" for call in message.tool_calls)


def watch(store: RunStore, journey: Journey) -> None:
    """Make the beginning and the end of each commit a point."""
    database: Any = store._database
    write = database.write

    def write_watched(work: Any, **arguments: Any) -> Any:
        work_of_store = inspect.unwrap(work)
        name = getattr(getattr(work_of_store, "func", work_of_store), "__name__", "?")

        def watched(transaction: Any) -> Any:
            result = work(transaction)
            journey.point(f"{name} before commit")
            return result

        result = write(watched, **arguments)
        journey.point(f"{name} after commit")
        return result

    database.write = write_watched


async def go_through(store: RunStore, journey: Journey, run_id: str = "run", *, lease: float = 5.0) -> None:
    """Work on the run until it has ended, and settle what it waits for."""
    telemetry = journey.telemetry()
    agent = scene(journey, telemetry)
    runs = DurableRuns(store, [agent], lease=lease, telemetry=telemetry, retry=RetryPolicy(backoff=0))
    await runs.submit(agent, "go", run_id=run_id)
    while not (state := await runs.status(run_id)).is_over:
        if await runs.work_until_idle() == 0 and state.status == "running":
            await anyio.sleep(0.05)
        if state.status != "waiting":
            continue
        await runs.decide(run_id, [Decision(request.approval_id, approved=True) for request in state.approvals])
        for call in state.external:
            await runs.settle(call.id, output=f"{call.tool} settled")


def work(url: str, options: str, path: str, backend: str, lease: str, nats: str = "", errors: str = "0") -> None:
    """Work on all runs of the scene, until this process is killed; SIGUSR1 stops it between two transactions.

    SIGTERM drains it. With the URL of a server, messages of a queue that loses and doubles them wake the worker.
    `errors` is the share of the model's calls that fail; the second failure in a row fails the run.
    """

    async def run() -> None:
        async with open_store(url, **json.loads(options)) as store, AsyncExitStack() as stack:
            queue = await stack.enter_async_context(FaultyQueue(nats, ack_wait=1.0)) if nats else None
            signal.signal(signal.SIGUSR1, lambda *_: _stop(store))
            agent, retry = scene(Journey(Path(path), errors=float(errors))), RetryPolicy(max_attempts=2, backoff=0.2)
            runs = DurableRuns(store, [agent], lease=float(lease), poll=0.1, queue=queue, retry=retry)
            await work_until_sigterm(runs)

    anyio.run(run, backend=backend)


async def work_until_sigterm(runs: DurableRuns, *, concurrency: int = 8, drain_timeout: float = 30.0) -> None:
    """Work until SIGTERM, and give passes this many seconds then."""
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:

            async def drain() -> None:
                async for _ in signals:
                    runs.drain(drain_timeout)

            tasks.start_soon(drain)
            await runs.work(concurrency=concurrency)
            tasks.cancel_scope.cancel()


def _stop(store: RunStore) -> None:
    with getattr(store._database, "_writing", nullcontext()):
        os.kill(os.getpid(), signal.SIGSTOP)


def main(url: str, options: str, path: str, kill_at: str, backend: str, trouble: str = "") -> None:
    """Go through the run in this process, and print the number of points."""
    journey = Journey(Path(path), int(kill_at), is_troubled=bool(trouble))

    async def run() -> None:
        async with open_store(url, **json.loads(options)) as store:
            watch(store, journey)
            await go_through(store, journey)

    anyio.run(run, backend=backend)
    print(journey.points)
