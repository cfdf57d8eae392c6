"""Durable runs whose workers are woken by NATS."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from pellucid import Agent, Tool, ToolCall, semconv
from pellucid.durable import DurableRuns, NATSQueue, open_store
from pellucid.durable.queue.subjects import consumer_of
from pellucid.testing import FunctionModel, ScriptedModel
from pellucid_exporters.testing import capture
from support.durable_agents import OWED, results
from support.nats_faults import FaultyQueue
from support.nats_server import Admin
from support.nats_worker import agent, queue_of
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from pellucid import ToolContext
    from pellucid.durable import RunState, RunStore
    from pellucid_exporters.testing import Captured
    from support.nats_server import NATSServer

    UntilWaiting = Callable[..., Awaitable[None]]

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.usefixtures("quiet_opentelemetry")]

RARELY = 600.0
"""Seconds between sweeps: what is found sooner was found by a message."""

NAME = "freight 7.*>"


@asynccontextmanager
async def working(*workers: DurableRuns, concurrency: int = 8) -> AsyncIterator[None]:
    """Work until the end of the block."""
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            for runs in workers:
                tasks.start_soon(partial(runs.work, concurrency=concurrency))
            yield
            tasks.cancel_scope.cancel()


async def until_over(runs: DurableRuns, *run_ids: str) -> list[RunState]:
    """Wait until runs have ended, and return their states."""
    while True:
        states = [await runs.status(run_id) for run_id in run_ids]
        if all(state.is_over for state in states):
            return states
        await anyio.sleep(0.01)


@pytest.fixture
async def until_waiting(nats: NATSServer, prefix: str, anyio_backend: str) -> AsyncIterator[UntilWaiting]:
    """Return a function that waits until workers wait for messages about an agent: they have swept the store before."""
    async with Admin(nats.url) as admin:

        async def wait(agent: str = NAME, number: int = 1) -> None:
            while await admin.waiting(f"{prefix}_work", consumer_of(agent)) < number:  # noqa: ASYNC110  (another thread or process)
                await anyio.sleep(0.01)

        yield wait


def hello(name: str = NAME) -> Agent:
    """Return an agent that answers."""
    return Agent(name, model=FunctionModel(lambda request: "hello"))


def value(telemetry: Captured, metric: semconv.Metric, **labels: str) -> float:
    """Return the sum of the points of a counter that have these labels."""
    names = {"agent": semconv.AGENT_NAME, "source": semconv.DURABLE_SOURCE, "reason": semconv.QUEUE_REASON}
    wanted = {names[name]: label for name, label in labels.items()}
    points = [point for point in telemetry.metrics if point.name == metric.name]
    return sum(point.value for point in points if wanted.items() <= point.attributes.items())


async def test_a_queued_run_is_announced(store: RunStore, queue: NATSQueue, until_waiting: UntilWaiting) -> None:
    """A queued run is announced when the run before it in its conversation has ended."""
    runs = DurableRuns(store, [hello()], queue=queue, poll=RARELY, conversations="queue")
    async with working(runs):
        await until_waiting()
        ids = [await runs.submit(NAME, "Hi", conversation_id="c") for _ in range(3)]
        states = await until_over(runs, *ids)
    assert [state.output for state in states] == ["hello"] * 3


async def test_woken_by_messages(store: RunStore, queue: NATSQueue, until_waiting: UntilWaiting) -> None:
    """Runs that are submitted, and that continue after a result, are claimed because of messages."""
    model = ScriptedModel([ToolCall("owed", {}, "c")], "done")
    with capture() as telemetry:
        runs = DurableRuns(store, [Agent(NAME, model=model, tools=[OWED])], queue=queue, poll=RARELY)
        async with working(runs):
            await until_waiting()
            run_id = await runs.submit(NAME, "go", run_id="a run of *>")
            while (state := await runs.status(run_id)).status != "waiting":  # noqa: ASYNC110  (another thread or process)
                await anyio.sleep(0.01)
            assert (await runs.settle(state.external[0].id, output="here")).is_run_due
            [state] = await until_over(runs, run_id)
        assert results(state) == {"c": "here"}
        assert value(telemetry, semconv.DURABLE_CLAIMS, agent=NAME, source="queue") == 2
        assert value(telemetry, semconv.DURABLE_CLAIMS, source="store") == 0


async def test_messages(store: RunStore, make_queue: Callable[..., NATSQueue], nats: NATSServer, prefix: str) -> None:
    """A message names the run, its agent and its latest claim, in the trace of its cause; each is counted."""
    with capture() as telemetry:
        async with make_queue() as queue, Admin(nats.url) as admin:
            with telemetry.tracer_provider.get_tracer("test").start_as_current_span("cause") as span:
                await DurableRuns(store, [], queue=queue).submit(NAME, "go", run_id="run.7")
            with anyio.fail_after(PATIENCE):
                delivery = await queue.receive([NAME], PATIENCE)
                assert delivery is not None
                delivery.give_back()
                delivery = await queue.receive([NAME], PATIENCE)
            [message] = await admin.messages(f"{prefix}_work")
        trace_id = format(span.get_span_context().trace_id, "032x")
        assert message.subject == f"{prefix}.work.freight=207=2E=2A=3E"
        assert json.loads(message.data) == {"run_id": "run.7", "agent": NAME, "fence": 0}
        assert message.headers["Nats-Msg-Id"] == "run=2E7:0"
        assert trace_id in message.headers["traceparent"]
        assert telemetry.value(semconv.QUEUE_PUBLISHED, **{semconv.QUEUE_MESSAGE: "work"}) == 1
        assert telemetry.value(semconv.QUEUE_REDELIVERED, **{semconv.AGENT_NAME: NAME}) == 1


async def test_full_buffer(store: RunStore) -> None:
    """Messages beyond the buffer are dropped and counted; submitting does not wait."""
    with capture() as telemetry:
        async with NATSQueue("nats://127.0.0.1:1", buffer=2) as queue:
            runs = DurableRuns(store, [], queue=queue)
            for _ in range(5):
                await runs.submit(NAME, "go")
        labels = {semconv.QUEUE_MESSAGE: "work", semconv.QUEUE_REASON: "full"}
        assert telemetry.value(semconv.QUEUE_DROPPED, **labels) == 3


async def test_several_agents(store: RunStore, queue: NATSQueue, until_waiting: UntilWaiting) -> None:
    """A worker receives messages for each of its agents, and leaves those of others to others."""
    agents = [hello(name) for name in ("first", "second.x", "third *")]
    runs = DurableRuns(store, agents, queue=queue, poll=RARELY)
    foreign = DurableRuns(store, [], queue=queue)
    async with working(runs):
        await until_waiting("first")
        other = await foreign.submit("unknown", "go")
        run_ids = [await runs.submit(agent, "go") for agent in agents * 3]
        await until_over(runs, *run_ids)
        assert (await runs.status(other)).status == "due"
        async with working(DurableRuns(store, [hello("unknown")], queue=queue, poll=RARELY)):
            await until_over(runs, other)


async def test_spread(store: RunStore, make_queue: Callable[..., NATSQueue], until_waiting: UntilWaiting) -> None:
    """A worker without room takes no message: each of three workers gets one of three runs."""
    meeting = set()

    async def meet(arguments: Any, ctx: ToolContext) -> str:
        meeting.add(ctx.deps)
        while len(meeting) < 3:  # noqa: ASYNC110  (another thread or process)
            await anyio.sleep(0.01)
        return "met"

    model = FunctionModel(lambda request: "done" if len(request.messages) > 1 else [ToolCall("meet", {}, "c")])
    agent = Agent(NAME, model=model, tools=[Tool(name="meet", run=meet)])
    async with make_queue() as first, make_queue() as second, make_queue() as third:
        queues = (first, second, third)
        workers = [DurableRuns(store, [agent], queue=q, poll=RARELY, deps=n) for n, q in enumerate(queues)]
        async with working(*workers, concurrency=1):
            await until_waiting(number=3)
            run_ids = [await workers[0].submit(agent, "go") for _ in range(3)]
            await until_over(workers[0], *run_ids)


async def test_stopped_worker(
    store: RunStore, make_queue: Callable[..., NATSQueue], until_waiting: UntilWaiting
) -> None:
    """A worker that is stopped gives its run back, and another one continues it at once."""
    has_started, is_free = anyio.Event(), False

    async def wait(arguments: Any, ctx: ToolContext) -> str:
        has_started.set()
        while not is_free:  # noqa: ASYNC110  (another thread or process)
            await anyio.sleep(0.01)
        return "done"

    model = FunctionModel(lambda request: "done" if len(request.messages) > 1 else [ToolCall("wait", {}, "c")])
    agent = Agent(NAME, model=model, tools=[Tool(name="wait", run=wait, idempotent=True)])
    async with make_queue() as first, make_queue() as second:
        runs = DurableRuns(store, [agent], queue=first, poll=RARELY, lease=RARELY)
        async with working(runs):
            await until_waiting()
            run_id = await runs.submit(agent, "go")
            await has_started.wait()
        is_free = True
        async with working(DurableRuns(store, [agent], queue=second, poll=RARELY)):
            await until_over(runs, run_id)


async def test_dropped_and_doubled(store: RunStore, nats: NATSServer, prefix: str) -> None:
    """Each run is answered once, although some messages are lost and others come twice."""
    answers: list[str] = []

    def answer(request: Any) -> Any:
        answers.append(request.messages[0].text)
        return "done"

    agent = Agent(NAME, model=FunctionModel(answer))
    async with FaultyQueue(nats.url, prefix=prefix) as queue:
        runs = DurableRuns(store, [agent], queue=queue, poll=0.2)
        async with working(runs):
            run_ids = [await runs.submit(agent, f"question {number}") for number in range(40)]
            await until_over(runs, *run_ids)
        assert queue.dropped > 5
        assert queue.doubled > 5
    assert sorted(answers) == sorted(f"question {number}" for number in range(40))


async def test_server_away(
    store: RunStore, make_queue: Callable[..., NATSQueue], nats: NATSServer, prefix: str
) -> None:
    """Runs end while the server is away; when it is there again, messages wake workers."""
    agent = hello()
    await anyio.to_thread.run_sync(nats.stop)
    try:
        async with make_queue(buffer=2) as queue:
            runs = DurableRuns(store, [agent], queue=queue, poll=0.1)
            async with working(runs):
                await until_over(runs, *[await runs.submit(agent, "go") for _ in range(5)])
            await anyio.to_thread.run_sync(nats.start)
            async with working(DurableRuns(store, [agent], queue=queue, poll=RARELY)), Admin(nats.url) as admin:
                while await admin.waiting(f"{prefix}_work", consumer_of(NAME)) < 1:  # noqa: ASYNC110  (another thread or process)
                    await anyio.sleep(0.01)
                await until_over(runs, await runs.submit(agent, "go"))
    finally:
        await anyio.to_thread.run_sync(nats.kill)
        await anyio.to_thread.run_sync(nats.start)


async def test_streams_deleted(
    store: RunStore, queue: NATSQueue, nats: NATSServer, prefix: str, until_waiting: UntilWaiting
) -> None:
    """Streams that are deleted are created again, and messages wake workers as before."""
    agent = hello()
    runs = DurableRuns(store, [agent], queue=queue, poll=RARELY)
    async with working(runs), Admin(nats.url) as admin:
        await until_waiting()
        for _ in range(2):
            await until_over(runs, await runs.submit(agent, "go"))
            for kind in ("work", "events", "dead"):
                await admin.call("STREAM.DELETE", f"{prefix}_{kind}")
        run_id = await runs.submit(agent, "go")
        await until_over(runs, run_id)
        assert [event.type async for event in queue.events(run_id)][-1] == "run.completed"


SCRIPT = """
import sys

sys.path.insert(0, sys.argv[1])
from support.nats_worker import work

work(*sys.argv[2:])
"""


@pytest.mark.parametrize("when", ["tool", "ack"])
async def test_killed_before_the_ack(
    store: RunStore,
    nats: NATSServer,
    prefix: str,
    tmp_path: Path,
    until_waiting: UntilWaiting,
    when: str,
    anyio_backend: str,
) -> None:
    """A message whose worker is killed, within the pass or after it, comes again, and no run goes on twice."""
    log = tmp_path / "log.txt"
    arguments = (Path(__file__).parents[1], f"sqlite:///{tmp_path}/runs.db", nats.url, prefix, log, when, anyio_backend)
    process = subprocess.Popen(  # noqa: ASYNC220  (returns at once)
        [sys.executable, "-W", "error", "-c", SCRIPT, *map(str, arguments)]
    )
    async with queue_of(nats.url, prefix) as queue, Admin(nats.url) as admin:
        runs = DurableRuns(store, [agent(log, "never")], queue=queue, poll=0.2)
        try:
            await until_waiting("killed")
            await runs.submit("killed", "go", run_id="run")
            assert await anyio.to_thread.run_sync(process.wait, PATIENCE) == -signal.SIGKILL
        finally:
            process.kill()
            process.wait()
        async with working(runs):
            [state] = await until_over(runs, "run")
            # Only who receives the message can remove it.
            while (await admin.call("STREAM.INFO", f"{prefix}_work"))["state"]["messages"]:  # noqa: ASYNC110  (a server)
                await anyio.sleep(0.05)
    assert (state.status, log.read_text()) == ("completed", "tool\n")


async def test_a_suspect_waits_for_an_idle_worker(
    store: RunStore, queue: NATSQueue, nats: NATSServer, prefix: str, tmp_path: Path
) -> None:
    """A suspect run is left by a busy worker, though a message names it, and claimed once its passes have ended."""
    go_on = anyio.Event()
    starts: list[str] = []

    async def answer(request: Any) -> str:
        starts.append(request.messages[0].text)
        if starts == ["x"]:
            await go_on.wait()
        return "done"

    runs = DurableRuns(store, [Agent(NAME, model=FunctionModel(answer))], queue=queue, poll=0.05)
    async with Admin(nats.url) as admin, open_store(f"sqlite:///{tmp_path}/runs.db") as silent:
        for text in ("x", "suspect"):
            await DurableRuns(silent, []).submit(NAME, text, run_id=text)
        for _ in range(2):
            assert await silent.claim_run("suspect", NAME, "worker that ends", 0.0) is not None
        async with working(runs):
            state = {"messages": 1, "last_seq": 0}  # of the message with which a sweep announces the suspect
            while not starts or state["messages"] or not state["last_seq"]:
                await anyio.sleep(0.01)
                state = (await admin.call("STREAM.INFO", f"{prefix}_work")).get("state", state)
            assert starts == ["x"]
            assert (await runs.status("suspect")).status == "due"
            go_on.set()
            await until_over(runs, "x", "suspect")
    assert starts == ["x", "suspect"]
