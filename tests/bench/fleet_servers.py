"""The servers of the fleet's telemetry, read from `/proc`, their own metrics, and their folders."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import Request, urlopen

from bench.processes import processor_time
from stack.compose import PROGRAMS, Service, Stack
from support.ports import free_port

NAMES: Final = ("jaeger", "prometheus", "otel-collector")
TELEMETRY: Final = ("otel-collector", "jaeger")
"""Services that have the metrics of a collector."""

ITEMS: Final = "(spans|log_records|metric_points)"
COUNTED: Final[Mapping[str, str]] = {
    "received": "otelcol_receiver_accepted_spans",
    "sent": "otelcol_exporter_sent_spans",
    "refused": f"otelcol_receiver_(refused|failed)_{ITEMS}",
    "failed": f"otelcol_exporter_(send|enqueue)_failed_{ITEMS}",
}


def total(page: str, name: str) -> float:
    """Return the sum of all series of a metric; the pattern is its name without unit and `_total`."""
    series = re.compile(rf"{name}(__\w+?_?)?(_total)?[{{ ]")
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if series.match(line))


def fetch(url: str) -> str:
    """Return a page."""
    with urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def size(folder: Path) -> int:
    """Return the bytes on disk of a folder. Files with holes, as badger makes them, count as what they occupy."""
    found = 0
    for place, _, files in os.walk(folder):
        for name in files:
            try:
                found += Path(place, name).stat().st_blocks * 512
            except FileNotFoundError:  # badger has merged it meanwhile
                continue
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """Resources that all services have used, and items that they have counted, until now."""

    processor: Mapping[str, float]
    counts: Mapping[tuple[str, str], float]

    @property
    def lost(self) -> float:
        """Items that were refused or not sent; a batch that is sent again counts each time."""
        return sum(count for (_, what), count in self.counts.items() if what in ("refused", "failed"))


def read(stack: Stack) -> Reading:
    """Read all services."""
    pages = {name: fetch(stack[name].url("/metrics", 8888)) for name in TELEMETRY}
    return Reading(
        {name: processor_time(stack[name].pid) for name in NAMES},
        {(name, what): total(page, metric) for name, page in pages.items() for what, metric in COUNTED.items()},
    )


@dataclass(slots=True)
class Watch:
    """The fullest queue while runs are made, and how busy the machine is.

    Attributes:
        memory: The largest resident bytes of each service that are not pages of files.
        fullest: The largest share of a sending queue that was taken.
        busy: The share of all processors that was taken, by whatever.
        load: The largest load of the last minute.
        stopped: Ends it.
    """

    memory: dict[str, int] = field(default_factory=dict)
    fullest: float = 0.0
    busy: float = 0.0
    load: float = 0.0
    stopped: threading.Event = field(default_factory=threading.Event)

    def follow(self, stack: Stack) -> None:
        """Look once a second."""
        while not self.stopped.wait(1.0):
            self.load = max(self.load, os.getloadavg()[0])
            for name in NAMES:
                self.memory[name] = max(self.memory.get(name, 0), anonymous(stack[name].pid))
            for name in TELEMETRY:
                with suppress(URLError, TimeoutError):  # too busy to answer, which the other figures show
                    self.fullest = max(self.fullest, fullest(fetch(stack[name].url("/metrics", 8888))))


def anonymous(pid: int) -> int:
    """Return the resident bytes of a process without those of mapped files, which the system can take back."""
    return int(Path(f"/proc/{pid}/status").read_text().partition("RssAnon:")[2].split()[0]) * 1024


def complaint(service: Service) -> str:
    """Return the last line of a service's log about an error; empty if there is none."""
    lines = [line for line in service.log.read_text().splitlines() if re.search(r'\terror\t|"level":"error"', line)]
    return lines[-1][-600:] if lines else ""


def fullest(page: str) -> float:
    """Return the share of the fullest sending queue that is taken; 0 if there is none."""
    sizes, capacities = (
        {
            re.sub(r'data_type="\w+",', "", line.rpartition(" ")[0].partition("{")[2]): float(line.rpartition(" ")[2])
            for line in page.splitlines()
            if line.startswith(f"otelcol_exporter_queue_{what}{{")
        }
        for what in ("size", "capacity")
    )
    return max((sizes[labels] / capacities[labels] for labels in sizes), default=0.0)


@contextmanager
def watching(stack: Stack) -> Iterator[Watch]:
    """Watch for the block."""
    watch = Watch()
    thread = threading.Thread(target=watch.follow, args=(stack,))
    before = _ticks()
    thread.start()
    try:
        yield watch
    finally:
        watch.stopped.set()
        thread.join()
        busy, all_of_them = (now - then for now, then in zip(_ticks(), before, strict=True))
        watch.busy = busy / max(1, all_of_them)


def _ticks() -> tuple[int, int]:
    """Return the ticks in which processors worked, and all ticks."""
    fields = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(fields) - fields[3] - fields[4], sum(fields)


def until(question: Callable[[], bool], timeout: float) -> bool:
    """Ask until the answer is yes, or the time is over; return the last answer."""
    deadline = time.monotonic() + timeout
    while not (answer := question()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return answer


def add_targets(stack: Stack, name: str, targets: Sequence[Mapping[str, object]]) -> None:
    """Let Prometheus scrape what else is to be scraped; it reads the file when it appears."""
    folder = stack["prometheus"].mounted("/etc/prometheus") / "targets"
    written = folder / f"{name}.part"
    written.write_text(json.dumps(targets))  # JSON is YAML
    written.rename(folder / f"{name}.yml")


@dataclass(frozen=True, slots=True)
class Block:
    """Block that Prometheus writes to the disk every two hours. Attributes: bytes; samples; series."""

    bytes: int
    samples: int
    series: int


def block_of(service: Service) -> Block:
    """Return what all samples of a Prometheus that was stopped are as a block, by a snapshot."""
    data, port = service.mounted("/prometheus"), free_port()
    command = [
        str(PROGRAMS["prometheus"]),
        f"--config.file={service.mounted('/etc/prometheus')}/prometheus.yml",
        f"--storage.tsdb.path={data}",
        "--web.enable-admin-api",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with service.log.open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            if not until(lambda: _answers(f"http://127.0.0.1:{port}/-/ready"), 120.0):
                raise TimeoutError(f"Prometheus does not start again: {service.log}")
            with urlopen(
                Request(f"http://127.0.0.1:{port}/api/v1/admin/tsdb/snapshot", b"", method="POST"), timeout=300
            ):
                pass
        finally:
            process.terminate()
    blocks = [path.parent for path in (data / "snapshots").glob("*/*/meta.json")]
    found = [json.loads((block / "meta.json").read_text())["stats"] for block in blocks]
    return Block(
        sum(size(block) for block in blocks),
        sum(each["numSamples"] for each in found),
        max(each["numSeries"] for each in found),
    )


def _answers(url: str) -> bool:
    try:
        fetch(url)
    except (URLError, ConnectionError):
        return False
    return True


@contextmanager
def counting_sink() -> Iterator[tuple[str, dict[str, int]]]:
    """Receive OTLP over HTTP and count its bytes; the values are the address, and bytes by path."""
    counted: dict[str, int] = {}
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = len(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                counted[self.path] = counted.get(self.path, 0) + length
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", counted
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
