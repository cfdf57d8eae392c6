"""Costs of the local store: CPU of ingestion, bytes, and queries over the ingested spans.

`make bench WHAT=store` prints the figures of `docs/exporters/local.md`. Spans are those of real runs, replayed through
the processor of `configure(local=...)` with ids, times and digests of their own.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.trace import SpanContext

from pellucid import Agent, DiscoveryProvider, ToolCall, semconv, tool
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters import Local, StoreReader, configure
from pellucid_exporters.local.hub_minutes import Objective
from pellucid_exporters.local.maintenance import statistics as statistics_of
from pellucid_exporters.local.processor import LocalProcessor
from pellucid_exporters.stored.alerts import evaluate
from pellucid_exporters.testing import capture

HUBS: Final = 10
WRITERS: Final = 4
ITERATIONS: Final = 4
DAY: Final = 86_400 * 10**9
BATCH: Final = 300
"""Runs whose spans are made before they are measured."""

LARGE: Final = 5_001
"""Spans of the largest run."""

_OWN: Final = (semconv.INPUT_DIGEST, semconv.OUTPUT_DIGEST, semconv.REQUEST_DIGEST)


@tool
async def look(what: str) -> str:
    """Look something up."""
    return f"{what} is fine"


class Ended(SpanProcessor):
    """Ended spans, as processors get them."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span."""
        self.spans.append(span)


def real_spans(hub: str) -> list[ReadableSpan]:
    """Return the spans of a run that asks a hub in each of its iterations, in start order."""
    calls: list[Any] = [[ToolCall("look", {"what": "weather"})]] * (ITERATIONS - 1)
    ended = Ended()
    with capture(fixed=False) as telemetry:
        telemetry.tracer_provider.add_span_processor(ended)
        provider = DiscoveryProvider(FakeHub([look]), id=hub, ttl=0, objective=0.2)
        agent = Agent(f"agent-of-{hub}", model=ScriptedModel(*calls, "done"), providers=[provider])
        agent.run_sync("How is the weather?")
    return sorted(ended.spans, key=lambda span: span.start_time or 0)


class Replay:
    """Runs like real ones, started at random within a day."""

    def __init__(self, *, seed: int = 1) -> None:
        self._random = random.Random(seed)
        self._runs = [real_spans(f"hub-{number}") for number in range(HUBS)]
        self._until = time.time_ns()

    def run(self) -> list[ReadableSpan]:
        """Return the spans of another run."""
        draw = self._random
        originals = draw.choice(self._runs)
        ids = {context_of(span).span_id: draw.getrandbits(64) or 1 for span in originals}
        trace, run_id = draw.getrandbits(128) or 1, f"{draw.getrandbits(128):032x}"
        shift = self._until - draw.randrange(DAY) - (originals[0].start_time or 0)
        return [self._span(span, ids, trace, run_id, shift) for span in originals]

    def _span(self, original: ReadableSpan, ids: dict[int, int], trace: int, run_id: str, shift: int) -> ReadableSpan:
        draw, span = self._random, copy.copy(original)
        flags, parent = context_of(original).trace_flags, original.parent
        span._context = SpanContext(trace, ids[context_of(original).span_id], False, flags)
        span._parent = SpanContext(trace, ids[parent.span_id], False, flags) if parent is not None else None
        own = {key: f"{draw.getrandbits(128):032x}" for key in _OWN if key in (original.attributes or {})}
        span._attributes = {**(original.attributes or {}), **own, semconv.RUN_ID: run_id}
        span._start_time = (original.start_time or 0) + shift
        span._end_time = (original.end_time or 0) + shift + draw.randrange(10 ** draw.randrange(3, 10))
        return span


def context_of(span: ReadableSpan) -> SpanContext:
    """Return the context of a span."""
    context: SpanContext | None = span.context
    assert context is not None
    return context


class Ingestion:
    """A store that is filled, and what that costs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spans = 0
        self._lost = 0
        resource = Resource({"service.name": "shop"})
        objectives: dict[str, Objective] = {f"hub-{number}": (0.2, None) for number in range(HUBS)}
        self._processor = LocalProcessor(
            Local(path),
            resource,
            lambda: objectives,
            on_failure=self._lose,
            on_drop=lambda _, number: self._lose(number),
        )

    def _lose(self, number: int = 1) -> None:
        self._lost += number

    def write(self, runs: Sequence[Sequence[ReadableSpan]]) -> float:
        """Write runs; return the CPU seconds of all threads per span."""
        gc.collect()
        gc.freeze()
        before = time.process_time()
        for run in runs:
            for span in run:
                self._processor.on_start(span)  # type: ignore[arg-type]  # a start reads what an ended span has, too
            for span in reversed(run):
                self._processor.on_end(span)
        while not self._processor.force_flush():
            pass
        taken = time.process_time() - before
        gc.unfreeze()
        written = sum(map(len, runs))
        self.spans += written
        return taken / written

    def close(self) -> None:
        """Close the store.

        Raises:
            AssertionError: something was lost.
        """
        self._processor.shutdown()
        assert not self._lost


def large_run(replay: Replay) -> list[ReadableSpan]:
    """Return a run of very many spans."""
    root, *others = replay.run()
    spans = [root]
    draw = random.Random(2)
    while len(spans) < LARGE:
        original = draw.choice(others)
        span = copy.copy(original)
        flags = context_of(original).trace_flags
        span._context = SpanContext(context_of(root).trace_id, draw.getrandbits(64) or 1, False, flags)
        spans.append(span)
    return spans


def cpu(work: Callable[[], Any], rounds: int = 5) -> float:
    """Return the CPU milliseconds of a call: the median of several."""
    taken = []
    for _ in range(rounds):
        before = time.process_time()
        work()
        taken.append((time.process_time() - before) * 1e3)
    return statistics.median(taken)


def payload(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the sizes of a store."""
    connection = sqlite3.connect(path)
    try:
        (spans,) = connection.execute("SELECT count(*) FROM spans").fetchone()
        (bodies,) = connection.execute("SELECT total(length(content)) FROM bodies").fetchone()
    finally:
        connection.close()
    yield "bytes a span, without large texts", f"{(path.stat().st_size - bodies) / spans:,.0f}"
    yield "of a store with spans", f"{spans:,}"


def queries(path: Path, large: str) -> Iterator[tuple[str, str]]:
    """Yield the CPU milliseconds of what pages and commands read."""
    reader, now = StoreReader(path), time.time_ns()
    some = reader.runs(limit=1)[0].run_id
    for name, work in (
        ("p50, p95 and p99 of all hubs, over the whole day", lambda: reader.hubs(0, 2**62)),
        ("p50, p95 and p99 of all hubs, of the last hour", lambda: reader.hubs(now - DAY // 24, now)),
        ("100 runs", reader.runs),
        ("100 runs by hub", lambda: reader.runs(hub="hub-3")),
        ("runs under way", lambda: reader.runs(outcome="running")),
        ("a run and its spans", lambda: (reader.run(some), reader.spans(some))),
        (f"a run of {LARGE:,} spans", lambda: reader.spans(large)),
        ("runs with a text", lambda: reader.runs(text="no such text")),
        ("alerts", lambda: evaluate(reader, now)),
        ("in flight", reader.in_flight),
        ("changes", reader.changes),
    ):
        yield f"{name}, ms of CPU", f"{cpu(work):,.1f}"


def in_sight(path: Path) -> Iterator[tuple[str, str]]:
    """Yield how long after its start a boundary is seen by a reader, while nothing else is written."""
    taken = []
    telemetry = configure("shop", local=Local(path), set_global=False)
    tracer, reader = telemetry.tracer_provider.get_tracer(semconv.SCOPE), StoreReader(path)
    for number in range(10):
        attributes = {semconv.RUN_ID: f"{number}", semconv.PHASE: semconv.RUN}
        span, start = tracer.start_span("invoke_agent", attributes=attributes), time.monotonic()
        while not reader.in_flight():
            time.sleep(0.001)
        taken.append((time.monotonic() - start) * 1e3)
        span.end()
        telemetry.flush()
    telemetry.shutdown()
    yield "from the start of a boundary to its row, ms, slowest of 10", f"{max(taken):,.0f}"


def contention(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what four processes write while one reads.

    Raises:
        AssertionError: something was lost.
    """
    Ingestion(path).close()
    reader, slowest, start = StoreReader(path), 0.0, time.monotonic()
    command = [sys.executable, "-m", "bench.store", "--into", str(path), "--spans", "10000"]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(WRITERS)]
    while any(writer.poll() is None for writer in writers):
        before = time.monotonic()
        reader.runs()
        slowest = max(slowest, time.monotonic() - before)
    taken = time.monotonic() - start
    written = sum(int(writer.communicate()[0]) for writer in writers)
    assert statistics_of(path)["spans"] == written
    yield f"spans that {WRITERS} processes wrote in {taken:.1f} s, none lost", f"{written:,}"
    yield "meanwhile 100 runs, ms, slowest", f"{slowest * 1e3:,.0f}"


def fill(path: Path, spans: int) -> tuple[list[float], str]:
    """Ingest spans; return the costs of each batch, and the id of a run of very many spans."""
    ingestion, replay = Ingestion(path), Replay()
    costs = []
    while ingestion.spans < spans:
        costs.append(ingestion.write([replay.run() for _ in range(BATCH)]))
    large = large_run(replay)
    ingestion.write([large])
    ingestion.close()
    return sorted(costs), str((large[0].attributes or {})[semconv.RUN_ID])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=170_000, help="to ingest (default: %(default)s, of 10,000 runs)")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # what each of several writers does
    options = parser.parse_args()
    if options.into is not None:
        ingestion, replay = Ingestion(options.into), Replay(seed=os.getpid())
        while ingestion.spans < options.spans:
            ingestion.write([replay.run() for _ in range(BATCH // 10)])
        ingestion.close()
        print(ingestion.spans)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        costs, large = fill(path, options.spans)
        rows = [
            ("spans ingested per CPU second, median", f"{1 / statistics.median(costs):,.0f}"),
            ("… best and worst tenth", f"{1 / costs[len(costs) // 10]:,.0f} {1 / costs[-len(costs) // 10]:,.0f}"),
            *payload(path),
            *queries(path, large),
            *in_sight(Path(folder) / "idle.db"),
            *contention(Path(folder) / "shared.db"),
        ]
        for name, figure in rows:
            print(f"{name:60} {figure:>20}")


if __name__ == "__main__":
    main()
