"""Thousands of short runs on each event loop leave nothing behind."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import sys
import threading
from collections import Counter
from contextlib import suppress
from itertools import combinations, count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import sniffio
import trio
from opentelemetry.sdk.trace import SpanProcessor

from pellucid import (
    Agent,
    CancelToken,
    DiscoveryContext,
    DiscoveryProvider,
    Limits,
    Message,
    ModelDelta,
    ModelResponse,
    PellucidError,
    Tool,
    ToolCall,
)
from pellucid.concurrency.tasks import running
from pellucid.tools.catalog_cache import MOST
from pellucid_exporters import configure
from pellucid_exporters.options import Otlp, Prometheus
from pellucid_exporters.testing import FIRST_READING
from support.metrics_proto import PROTOBUF, decode
from support.openmetrics import fetch_bytes, scrape
from support.otlp_receiver import otlp_receiver

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, Span

    from pellucid import ModelRequest, ToolContext
    from pellucid_exporters import Telemetry
    from support.otlp_receiver import Receiver

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

RUNS = 2_500
"""On each of the two event loops."""

BLOCKS = 10
AT_ONCE = 10
WARM = 3
"""Blocks after which pools, caches and exemplar tables are full."""

OBJECTS_PER_RUN = 0.2
"""Growth that is noise: whatever keeps something of each run keeps at least one object of each."""

BYTES_PER_RUN = 256
"""The same of objects that are not among those counted, which are larger than 512 bytes."""


class Model:
    """A model that keeps nothing: it calls a tool, and then answers or fails."""

    provider_name = "soak"

    def __init__(self, name: str, *, calls: str | None = None, fails: bool = False) -> None:
        self.name = name
        self._calls = calls
        self._fails = fails

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer."""
        await anyio.lowlevel.checkpoint()
        if self._calls is not None and request.messages[-1].role == "user":
            return ModelResponse(message=Message("assistant", [ToolCall(self._calls, {"a": 1})]))
        if self._fails:
            raise ConnectionError("out of order")
        return ModelResponse(message=Message("assistant", "done"))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        """Answer in pieces."""
        for _ in range(3):
            yield ModelDelta("text", "piece ")
            await anyio.lowlevel.checkpoint()
        yield await self.generate(request)


class Hub:
    """A hub whose answers are those of a list, over and over."""

    def __init__(self, tools: Sequence[Tool], *, fails: bool = False) -> None:
        self._tools = tools
        self._fails = fails

    async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """Answer or fail."""
        await anyio.lowlevel.checkpoint()
        if self._fails:
            raise ConnectionError("hub out of order")
        return self._tools


async def _work(arguments: dict[str, Any], ctx: ToolContext) -> str:
    ctx.progress("half")
    return "ok"


async def _fail(arguments: dict[str, Any], ctx: ToolContext) -> str:
    raise ValueError("no such thing")


async def _cancel(arguments: dict[str, Any], ctx: ToolContext) -> None:
    assert ctx.signal is not None
    ctx.signal.cancel("enough")
    await anyio.sleep_forever()


async def _hang(arguments: dict[str, Any], ctx: ToolContext) -> None:
    await anyio.sleep_forever()


def _in_thread(arguments: dict[str, Any], ctx: ToolContext) -> str:
    return "ok"


class Timeless:
    """The way out of the process, under a clock that stands still.

    By a real one, each bucket of each histogram has its first exemplar when the first duration falls into it: that
    growth ends, but when is up to how busy the machine is, and it takes more runs than there are here.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self.tracer_provider = telemetry.tracer_provider
        self.meter_provider = telemetry.meter_provider
        self.log_sinks = telemetry.log_sinks
        self.capture = telemetry.capture
        self.listeners = telemetry.listeners

    def clock(self) -> int:
        """Read the clock."""
        return FIRST_READING


class Soak:
    """Agents of all kinds, and what they share. Attributes: token: one that many runs use and nobody cancels."""

    def __init__(self, telemetry: Timeless) -> None:
        self._telemetry = telemetry
        self.heard: Counter[str] = Counter()
        self.token = CancelToken()
        runs = {"work": _work, "fail": _fail, "cancel": _cancel, "hang": _hang, "thread": _in_thread}
        self._tools = [Tool(name=name, run=run) for name, run in runs.items()]
        self.cached = DiscoveryProvider(Hub(self._tools), id="cached", ttl=3600.0)
        self.refetched = DiscoveryProvider(Hub(self._tools), id="refetched", ttl=0.0)
        self.down = DiscoveryProvider(Hub((), fails=True), id="down")
        self.agents = {name: self._agent(Model("m", calls=name), providers=[self.cached]) for name in (*runs, "odd")}
        self.agents["hurried"] = self._agent(Model("m", calls="hang"), limits=Limits(timeout=0.001))
        self.agents["broken"] = self._agent(Model("m", fails=True))
        self.agents["plain"] = self._agent(Model("m"))
        self.agents["down"] = self._agent(Model("m"), providers=[self.down])
        self.agents["refetched"] = self._agent(Model("m", calls="work"), providers=[self.refetched])
        self._left = self._agent(Model("m", calls="work"))
        for agent in self.agents.values():
            agent.on("*", self._hear)
        self.agents["plain"].on("run.*", self._hear_later)
        self.kinds: list[Callable[[], Coroutine[Any, Any, object]]] = [
            *(lambda name=name: self._run(name) for name in self.agents if name != "cancel"),
            self._cancelled,
            self._streamed,
            self._left_early,
            self._abandoned,
            self._own_agent,
            self._cancelled_from_outside,
        ]

    def _agent(self, model: Model, **options: Any) -> Agent:
        if "providers" not in options:
            options["tools"] = self._tools
        return Agent("soak", model=model, telemetry=self._telemetry, **options)

    def _hear(self, event: Any) -> None:
        self.heard[event.name] += 1
        if event.name == "run.failed":
            self.heard[f"run {event.outcome}"] += 1

    async def _hear_later(self, event: Any) -> None:
        self.heard[f"later {event.name}"] += 1

    async def _run(self, name: str) -> None:
        with suppress(PellucidError):
            if name == "hang":
                with anyio.move_on_after(0.001):
                    await self.agents[name].run("go", signal=self.token)
            else:
                await self.agents[name].run("go", signal=self.token)

    async def _cancelled(self) -> None:
        with suppress(PellucidError):
            await self.agents["cancel"].run("go", signal=CancelToken())

    async def _streamed(self) -> None:
        async with self.agents["work"].stream("go") as events:
            async for _ in events:
                pass

    async def _left_early(self) -> None:
        async with self._left.stream("go", signal=self.token) as events:
            async for _ in events:
                break

    async def _abandoned(self) -> None:
        stream = self._left.stream("go")
        await stream.__aenter__()
        await anext(stream)

    async def _own_agent(self) -> None:
        agent = self._agent(Model("m", calls="work"))
        agent.on("*", self._hear)
        await agent.run("go")

    async def _cancelled_from_outside(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run, "hang")
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()

    async def in_pairs(self) -> None:
        """Do two runs of each kind at the same time: what only then is measured has its place from here on."""
        for kind in self.kinds:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(kind)
                tasks.start_soon(kind)

    async def block(self, runs: int) -> None:
        """Do so many runs of all kinds in turn, some at a time."""
        numbers = count()

        async def worker() -> None:
            while (number := next(numbers)) < runs:
                await self.kinds[number % len(self.kinds)]()

        async with anyio.create_task_group() as tasks:
            for _ in range(AT_ONCE):
                tasks.start_soon(worker)


class Balance(SpanProcessor):
    """Counts spans that were started, and those of them that have ended."""

    def __init__(self) -> None:
        self.started = 0
        self.ended = 0

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Count."""
        self.started += 1

    def on_end(self, span: ReadableSpan) -> None:
        """Count."""
        self.ended += 1


def tasks() -> int:
    """Return how many tasks there are in this event loop."""
    if sniffio.current_async_library() == "asyncio":
        return len(asyncio.all_tasks())
    return trio.lowlevel.current_statistics().tasks_living


def threads() -> Counter[str]:
    """Return the threads there are by name, but for the loop's pool of worker threads, which come and go."""
    names = [thread.name for thread in threading.enumerate()]
    return Counter(name for name in names if "worker thread" not in name.lower() and "trio thread" not in name.lower())


class _Mallinfo(ctypes.Structure):
    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def in_use() -> int:
    """Return the bytes that are allocated for C code and large objects.

    What the process has of the system is no measure of them: it goes up and down by megabytes with the order in which
    threads free what they had.
    """
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = _Mallinfo
    found = libc.mallinfo2()
    return int(found.uordblks + found.hblkhd)


def files() -> int:
    """Return how many file descriptors are open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  (iterdir makes a path of each)


def read_metrics(telemetry: Telemetry) -> None:
    """Scrape in both formats, which have a reader each: one that is not asked holds back what it found meanwhile."""
    assert telemetry.prometheus_url is not None
    scrape(telemetry.prometheus_url)
    decode(fetch_bytes(telemetry.prometheus_url, PROTOBUF))


async def settled(telemetry: Telemetry, receiver: Receiver, balance: Balance, idle: int) -> int:
    """Wait until nothing is under way, send and read what waits, and return how many spans arrived since last time."""
    with anyio.fail_after(60):
        gc.collect()
        while balance.started != balance.ended or tasks() > idle:  # noqa: ASYNC110  (no event tells of either)
            await anyio.sleep(0.005)
    assert await anyio.to_thread.run_sync(telemetry.flush, 20)
    await anyio.to_thread.run_sync(read_metrics, telemetry)
    with anyio.fail_after(60):
        # Whoever has the answer is ahead of the thread that gave it.
        while any("process_request_thread" in name for name in threads()):  # noqa: ASYNC110  (likewise)
            await anyio.sleep(0.005)
    assert receiver.faults == []
    arrived = len(receiver.spans)
    receiver.requests.clear()
    receiver.sizes.clear()
    return arrived


@pytest.mark.skipif(
    not (Path("/proc/self/fd").exists() and hasattr(ctypes.CDLL(None), "mallinfo2")),
    reason="reads descriptors where Linux shows them, and memory where glibc 2.33 or later does",
)
async def test_many_runs_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Memory, tasks, threads, descriptors, boundaries, listeners and tables stay as they were after the first runs."""
    caplog.set_level(logging.CRITICAL, "pellucid")  # pytest keeps every line that it sees
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "50000")
    with otlp_receiver("http/protobuf") as receiver:
        otlp = Otlp(endpoint=receiver.endpoint, protocol="http/protobuf")
        telemetry = configure("soak", otlp=otlp, prometheus=Prometheus(port=0), set_global=False)
        try:
            balance = Balance()
            telemetry.tracer_provider.add_span_processor(balance)
            soak = Soak(Timeless(telemetry))
            idle = tasks()
            seen: list[tuple[int, int]] = []
            arrived = 0
            before: tuple[Counter[str], int] | None = None
            for _ in range(MOST + 1):
                await soak.agents["refetched"].run("go")
            await soak.in_pairs()
            for block in range(BLOCKS):
                await soak.block(RUNS // BLOCKS)
                arrived += await settled(telemetry, receiver, balance, idle)
                gc.collect()
                seen.append((sys.getallocatedblocks(), in_use()))
                if block == WARM - 1:
                    before = threads(), files()
            assert before is not None
            assert threads() <= before[0]
            assert files() <= before[1] + AT_ONCE
            assert arrived == balance.ended
            assert balance.ended > 4 * RUNS
            _check_growth(seen)
            _check_tables(soak)
            assert tasks() == idle
            assert soak.heard["run.started"] > RUNS // 2
            assert min(soak.heard[name] for name in ("run cancelled", "run timeout", "run failed", "run.completed")) > 0
        finally:
            await anyio.to_thread.run_sync(telemetry.shutdown)


def _check_growth(seen: list[tuple[int, int]]) -> None:
    objects = [block for block, _ in seen]
    memory = [size for _, size in seen]
    assert _growth(objects) < OBJECTS_PER_RUN, objects
    assert _growth(memory) < BYTES_PER_RUN, memory


def _growth(seen: list[int]) -> float:
    """Return the growth for each run: the median of all pairs of blocks, so that one odd block does not matter."""
    pairs = combinations(enumerate(seen[WARM - 1 :]), 2)
    return median((later - earlier) / (last - first) for (first, earlier), (last, later) in pairs) * BLOCKS / RUNS


def _check_tables(soak: Soak) -> None:
    """Look into what could keep something of each run."""
    assert not running
    assert soak.token._callbacks == {}
    for provider in (soak.cached, soak.refetched, soak.down):
        assert len(provider._entries) <= 1
        assert len(provider._failures) <= 1
        assert provider._flights == {}
    for agent in soak.agents.values():
        listeners = 2 if agent is soak.agents["plain"] else 1
        assert len(agent._setup.listeners._subscriptions) == listeners
    assert soak._left._setup.listeners._subscriptions == ()
