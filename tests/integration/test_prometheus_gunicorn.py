"""`/metrics` of an application that gunicorn runs in several processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from support.metrics_proto import PROTOBUF, decode
from support.openmetrics import fetch_bytes, scrape, values
from support.otlp_receiver import attributes_of, otlp_receiver
from support.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parent.parent
RUNS = "gen_ai_invoke_agent_duration_seconds_count"

IN_EACH_WORKER = """
from pellucid_exporters import Prometheus, configure

def post_fork(server, worker):
    configure("shop", prometheus=Prometheus(port=range({first}, {last})))
"""

PUSHED = """
import uuid
from pellucid_exporters import configure

def post_fork(server, worker):
    configure("shop", otlp="{endpoint}", resource={{"service.instance.id": str(uuid.uuid4())}})
"""

BEFORE_THE_FORK = """
from pellucid_exporters import configure

preload_app = True
def on_starting(server):
    server.telemetry = configure("shop", prometheus={first})
def post_fork(server, worker):
    server.log.info("URL in worker: %s", server.telemetry.prometheus_url)
"""

READY = """
def post_worker_init(worker):
    worker.log.info("ready to work")
"""


class Gunicorn:
    """A server that runs. Attributes: port: where the application is; process: its master."""

    def __init__(self, port: int, process: subprocess.Popen[str], log: Path) -> None:
        self.port = port
        self.process = process
        self.log = log

    def call(self) -> int:
        """Run the agent once; return the worker in which it ran."""
        with urlopen(f"http://127.0.0.1:{self.port}/", timeout=60) as answer:
            return int(answer.read())

    def until(self, met: Callable[[], bool], timeout: float = 30.0) -> None:
        """Wait until a condition holds."""
        deadline = time.monotonic() + timeout
        while not met():
            if time.monotonic() > deadline or self.process.poll() is not None:
                pytest.fail(self.log.read_text())
            time.sleep(0.02)

    def answers(self) -> bool:
        """Return whether a worker takes requests."""
        try:
            return self.call() > 0
        except (URLError, ConnectionError):
            return False

    def stop(self) -> int:
        """Stop gracefully; return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def gunicorn(tmp_path: Path, config: str, workers: int = 3) -> Iterator[Gunicorn]:
    """Run the application with a configuration file until the end of the block."""
    file, log = tmp_path / "gunicorn.conf.py", tmp_path / "log"
    file.write_text(config + READY)
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "gunicorn", "support.gunicorn_app:app", "--config", str(file)]
    command += ["--bind", f"127.0.0.1:{port}", "--workers", str(workers), "--no-control-socket"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=TESTS, stdout=output, stderr=subprocess.STDOUT, text=True, env=environment
        )
        running = Gunicorn(port, process, log)
        try:
            # A worker that is still being made hears no signal to stop.
            running.until(lambda: log.read_text().count("ready to work") == workers)
            running.until(running.answers)
            yield running
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)


def counts(ports: range) -> dict[int, float]:
    """Return, for each port that answers, the runs that it counts."""
    found = {}
    for port in ports:
        try:
            families = scrape(f"http://127.0.0.1:{port}/metrics")
        except (URLError, ConnectionError):  # nobody listens, or its process is just dying
            continue
        family = families.get(RUNS.removesuffix("_count"))
        found[port] = sum(value for (name, _), value in values(family).items() if name == RUNS) if family else 0
    return found


def test_a_port_for_each_worker(tmp_path: Path) -> None:
    """Each worker serves its own runs on a port of a common range; a new worker takes the port of a dead one."""
    ports = free_ports(6)
    with gunicorn(tmp_path, IN_EACH_WORKER.format(first=ports.start, last=ports.stop)) as running:
        running.until(lambda: len(counts(ports)) == 3)
        done = sum(counts(ports).values())
        by_worker = Counter(running.call() for _ in range(30))
        assert sum(counts(ports).values()) == done + 30
        for port in counts(ports):
            assert "target_info" in decode(fetch_bytes(f"http://127.0.0.1:{port}/metrics", PROTOBUF))
        before = counts(ports)
        os.kill(next(iter(by_worker)), signal.SIGKILL)
        running.until(lambda: len(counts(ports)) == 3 and counts(ports) != before)
        assert set(counts(ports)) == set(before)
        assert running.stop() == 0
    assert counts(ports) == {}


def test_pushing_from_each_worker(tmp_path: Path) -> None:
    """Each run is exported by OTLP before its worker ends, under the instance that made it."""
    with otlp_receiver("http/protobuf") as receiver:
        with gunicorn(tmp_path, PUSHED.format(endpoint=receiver.endpoint)) as running:
            done = Counter(running.call() for _ in range(30))
            assert running.stop() == 0
        assert receiver.faults == []
        instances = {resource["service.instance.id"] for resource in receiver.resources}
        assert len(instances) >= len(done)
        runs = [span for span in receiver.spans if span.name == "invoke_agent web"]
        counted: dict[str, int] = {}
        for signal_name, request in receiver.requests:
            if signal_name == "metrics":
                for part in request.resource_metrics:
                    instance = attributes_of(part.resource)["service.instance.id"]
                    for metric in (metric for scope in part.scope_metrics for metric in scope.metrics):
                        if metric.name == "gen_ai.invoke_agent.duration":
                            points = metric.exponential_histogram.data_points
                            counted[instance] = sum(point.count for point in points)
        assert sum(counted.values()) == len(runs) >= 30


def test_configured_before_the_fork(tmp_path: Path) -> None:
    """Workers of a configuration made in the master serve nothing, run as before, and end."""
    ports = free_ports(1)
    with gunicorn(tmp_path, BEFORE_THE_FORK.format(first=ports.start), workers=2) as running:
        for _ in range(10):
            running.call()
        assert counts(ports) == {ports.start: 0}
        assert running.stop() == 0
        assert re.findall(r"URL in worker: (\S+)", running.log.read_text()) == ["None", "None"]
    assert counts(ports) == {}
