"""A fleet's telemetry: what a million runs a day cost in processes, Collector, Jaeger and Prometheus, as shipped.

`make bench WHAT=fleet` makes runs at rising rates until something is full; a million a day are 11.6 a second. An hour's
worth of them: ARGS="--rates 30 --runs 41667". It needs the servers that `make test-stack` builds. A run asks three hubs
in each of four iterations and calls three tools; its texts have 1.5 kB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.fleet_process import CALLS, LATENCY, SPANS
from bench.fleet_servers import (
    NAMES,
    TELEMETRY,
    Reading,
    add_targets,
    block_of,
    complaint,
    counting_sink,
    fetch,
    read,
    size,
    total,
    until,
    watching,
)
from bench.processes import peak, processor_time
from bench.rules import Process as Shown
from bench.rules import served
from stack.compose import Stack, stack
from stack.scene import Jaeger, prometheus_of
from stack.servers import missing

RATES: Final = (12.0, 25.0, 50.0, 75.0, 100.0, 150.0)
PATIENCE: Final = 90.0
"""Seconds until everything that was sent has arrived."""

INTERVAL: Final = 15.0
"""Seconds between two scrapes, as shipped."""

FULL: Final = 0.95
RUNS: Final = "sum(histogram_count(gen_ai_invoke_agent_duration_seconds{job='fleet'}))"
MIB: Final = 1024 * 1024


class Process:
    """A process with the agent. Attributes: url: of its metrics; pid."""

    def __init__(self, what: str, endpoint: str = "", **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "PELLUCID_"))}
        path = os.pathsep.join(place for place in sys.path if place)
        command = [sys.executable, "-m", "bench.fleet_process", what, endpoint]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**kept, "PYTHONPATH": path, **environment},
        )
        self.url = self._line()
        self.pid = self._process.pid

    def start(self, first: int, runs: int, rate: float) -> None:
        """Let it make runs."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{first} {runs} {rate}\n")
        self._process.stdin.flush()

    def outcome(self) -> dict[str, Any]:
        """Wait for the runs, and return what came of them."""
        found: dict[str, Any] = json.loads(self._line())
        return found

    def stop(self) -> None:
        """End it, after it has sent what it has."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(120)
        self._process.stdout.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ChildProcessError(f"a process of the fleet has ended with {self._process.wait()}")
        return line.strip()


@dataclass(slots=True)
class Fleet:
    """Everything that runs. Attributes: made: completed runs; asked: runs in all; traces: some of theirs."""

    running: Stack
    processes: Sequence[Process]
    made: int = 0
    asked: int = 0
    traces: list[str] = field(default_factory=list)

    def processor(self) -> float:
        """Return the processor time of all processes."""
        return sum(processor_time(process.pid) for process in self.processes)

    def dropped(self) -> float:
        """Return the telemetry that the processes could not send."""
        return sum(total(fetch(process.url), "pellucid_telemetry_dropped") for process in self.processes)

    def stored(self) -> int:
        """Return the bytes of the spans on disk."""
        return size(self.running["jaeger"].mounted("/tmp"))

    def make(self, runs: int, rate: float) -> tuple[int, float, float]:
        """Make runs in all processes; return how many completed, how many in a second, and the 99th percentile."""
        share = runs // len(self.processes)
        for process in self.processes:
            process.start(self.asked, share, rate / len(self.processes))
            self.asked += share
        outcomes = [process.outcome() for process in self.processes]
        self.traces += [trace for each in outcomes for trace in each["traces"]]
        completed = sum(each["completed"] for each in outcomes)
        self.made += completed
        # The last runs wait for their model as the others do, which is not part of the rate.
        seconds = max(each["seconds"] for each in outcomes) - LATENCY * (CALLS + 1)
        return completed, completed / seconds, max(each["p99"] for each in outcomes)


@contextmanager
def fleet(folder: Path, processes: int, copies: int) -> Iterator[Fleet]:
    """Run servers and processes; Prometheus scrapes what one process shows as that of further ones."""
    with ExitStack() as until_end:
        running = until_end.enter_context(stack(folder, NAMES))
        started = []
        for _ in range(processes):
            process = Process("all", running["otel-collector"].url(port=4318))
            until_end.callback(process.stop)
            started.append(process)
        targets = [{"targets": [urlsplit(process.url).netloc], "labels": {"job": "fleet"}} for process in started]
        add_targets(running, "fleet", targets)
        if copies:
            shown = until_end.enter_context(served(Shown(started[0].url, INTERVAL, buckets=False)))
            names = [{"job": "copies", "instance": f"10.0.{n // 250}.{n % 250}"} for n in range(copies)]
            add_targets(running, "copies", [{"targets": [shown], "labels": labels} for labels in names])
        yield Fleet(running, started)


def step(fleet: Fleet, runs: int, rate: float) -> list[str]:
    """Make runs at a rate, print what they cost, and return what was full."""
    before, processes, stored, lost = read(fleet.running), fleet.processor(), fleet.stored(), fleet.dropped()
    began = time.monotonic()
    with watching(fleet.running) as watch:
        completed, achieved, slowest = fleet.make(runs, rate)

    def settled() -> bool:
        return read(fleet.running).counts["otel-collector", "sent"] >= fleet.made * SPANS

    arrived = until(settled, PATIENCE)
    after, seconds = read(fleet.running), time.monotonic() - began
    used = {name: after.processor[name] - before.processor[name] for name in NAMES}
    used = {"processes": fleet.processor() - processes, **used}
    dropped, refused = fleet.dropped() - lost, after.lost - before.lost
    print(f"\n{rate:g} runs/s asked, {achieved:.1f} made: {completed:,} of {runs:,} completed, p99 {slowest:.2f} s")
    share = sum(used.values()) / seconds / (os.cpu_count() or 1)
    print(
        f"  machine: {watch.busy:.0%} of {os.cpu_count()} processors busy, {share:.0%} with this; "
        f"load at most {watch.load:.1f}"
    )
    for name, value in used.items():
        memory = max(peak(process.pid) for process in fleet.processes) if name == "processes" else 0
        memory = memory or int(fleet.running[name].memory * MIB)
        mapped = f", {watch.memory[name] / MIB:.0f} without mapped files" if name in watch.memory else ""
        print(
            f"  {name:15} {value:8.1f} s of processors in {seconds:.0f} s, {1000 * value / max(1, completed):6.2f} s "
            f"per 1,000 runs; at most {memory / MIB:5.0f} MiB{mapped}"
        )
    print(f"  queues: at most {watch.fullest:.1%} full; dropped by processes {dropped:.0f}, by servers {refused:.0f}")
    print(f"  spans: {counted(before, after)}; {fleet.stored() - stored:,} bytes more on disk", flush=True)
    for name in TELEMETRY:
        if refused and (line := complaint(fleet.running[name])):
            print(f"  {name}: {line}")
    reasons = {
        "processes drop telemetry": dropped > 0,
        "Collector or Jaeger refuse or fail": refused > 0,
        "a sending queue": watch.fullest >= FULL,
        "spans have not arrived": not arrived,
        f"{achieved / rate:.0%} of the rate is made": achieved < FULL * rate,
    }
    return [reason for reason, is_so in reasons.items() if is_so]


def counted(before: Reading, after: Reading) -> str:
    """Return spans that each server has received and sent."""
    pairs = [(name, what) for name in TELEMETRY for what in ("received", "sent")]
    return ", ".join(f"{' '.join(each)} {after.counts[each] - before.counts[each]:,.0f}" for each in pairs)


def nothing_is_lost(fleet: Fleet) -> None:
    """Compare what processes made with what the servers have."""
    prometheus, jaeger = prometheus_of(fleet.running), Jaeger(fleet.running["jaeger"].url())
    until(lambda: prometheus.value(RUNS) == fleet.made, PATIENCE)
    counts = read(fleet.running).counts
    taken, stored = counts["otel-collector", "sent"], counts["jaeger", "sent"]
    whole = sum(len(jaeger.spans(trace)) == SPANS for trace in fleet.traces)
    print(f"\nruns: {fleet.made:,} made, {prometheus.value(RUNS) or 0:,.0f} in Prometheus")
    print(f"spans: {fleet.made * SPANS:,} made ({SPANS} a run), {taken:,.0f} taken by Jaeger")
    print(f"spans that were sent to Jaeger again after a timeout: {max(0, stored - taken):,.0f}")
    print(f"traces: {whole:,} of {len(fleet.traces):,} that were looked for are whole in Jaeger")


def of_prometheus(fleet: Fleet) -> None:
    """Print what Prometheus has."""
    prometheus = prometheus_of(fleet.running)
    asked = {
        "series in the head": "prometheus_tsdb_head_series",
        "samples in a second": "sum(rate(prometheus_tsdb_head_samples_appended_total[2m]))",
        "bytes of the heap": "go_memstats_heap_inuse_bytes{instance=~'.*:9090'}",
        "processors": "rate(process_cpu_seconds_total{instance=~'.*:9090'}[2m])",
        "missed evaluations": "sum(prometheus_rule_group_iterations_missed_total)",
        "targets that do not answer": "count(up{job!='stack'} == 0) or vector(0)",
        "series of one process": f"count({{instance='{urlsplit(fleet.processes[0].url).netloc}'}})",
    }
    print("\nPrometheus: " + "; ".join(f"{name} {prometheus.value(query) or 0:,.2f}" for name, query in asked.items()))


def compared(runs: int, rate: float) -> None:
    """Print the processor time of one process without telemetry and with more and more of it, and bytes of OTLP."""
    print(f"one process, {runs:,} runs at {rate:g}/s:")
    for name, what, compression in (
        ("no telemetry", "none", "none"),
        ("metrics, scraped", "metrics", "none"),
        ("and spans and logs by OTLP", "all", "none"),
        ("the same, with gzip", "all", "gzip"),
    ):
        with counting_sink() as (url, received):
            process = Process(what, url, OTEL_EXPORTER_OTLP_COMPRESSION=compression)
            process.start(0, 50, rate)  # what is only loaded and listed once
            process.outcome()
            before, made = processor_time(process.pid), 50
            process.start(50, runs, rate)
            made += process.outcome()["completed"]
            used, memory = processor_time(process.pid) - before, peak(process.pid)
            process.stop()
        sent = ", ".join(f"{path.rpartition('/')[2]} {size / made:,.0f}" for path, size in sorted(received.items()))
        print(
            f"  {name:27} {1000 * used / runs:6.2f} s of processors per 1,000 runs, at most {memory / MIB:.0f} MiB; "
            f"bytes of a run: {sent or 'none'}",
            flush=True,
        )


def main() -> None:
    """Measure each rate."""
    parser = argparse.ArgumentParser(description="Measure what the telemetry of a fleet costs.")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="runs in a second, of all processes")
    parser.add_argument("--runs", type=int, help="runs at each rate; unless given those of --seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each step without --runs")
    parser.add_argument("--processes", type=int, default=4, help="processes that make them")
    parser.add_argument("--copies", type=int, default=0, help="processes that Prometheus sees beside these")
    parser.add_argument("--compared", type=int, default=600, help="runs with and without telemetry; 0 for none")
    options = parser.parse_args()
    if names := set(NAMES).intersection(missing()):
        sys.exit(f"not built: {', '.join(names)}; `make test-stack` builds them")
    if options.compared:
        compared(options.compared, 30.0)
    with tempfile.TemporaryDirectory(prefix="fleet-") as directory:
        with fleet(Path(directory), options.processes, options.copies) as running:
            for rate in options.rates:
                runs = options.runs or round(rate * options.seconds)
                full = step(running, runs // options.processes * options.processes, rate)
                if full:
                    print(f"  FULL at {rate:g} runs/s: {'; '.join(full)}", flush=True)
                    break
            nothing_is_lost(running)
            of_prometheus(running)
            spans = read(running.running).counts["otel-collector", "sent"]
            services = running.running.services
        stored, block = running.stored(), block_of(services["prometheus"])
        print(f"Jaeger, stopped: {stored:,} bytes on disk, {stored / max(1, spans):,.0f} a span")
        print(
            f"Prometheus: a block of {block.bytes:,} bytes, {block.samples:,} samples and {block.series:,} series: "
            f"{block.bytes / max(1, block.samples):.1f} bytes a sample"
        )


if __name__ == "__main__":
    main()
