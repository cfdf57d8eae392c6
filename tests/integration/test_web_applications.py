"""Agents in a FastAPI application, as processes: under uvicorn, and under gunicorn with workers that are replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from support.openmetrics import scrape, values
from support.otlp_receiver import attributes_of, otlp_receiver
from support.ports import free_ports
from support.processes import PATIENCE
from support.server_scene import events

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.otlp_receiver import Receiver

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parent.parent

GUNICORN = """
wsgi_app = "support.web_app:app"
worker_class = "uvicorn_worker.UvicornWorker"
workers = 2
preload_app = True
max_requests = 20
control_socket_disable = True
"""


@contextmanager
def started(*command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the end of the block; it is stopped gracefully, at the latest then."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    with subprocess.Popen([sys.executable, "-m", *command], cwd=TESTS, env={**variables, **environment}) as process:
        try:
            yield process
            process.terminate()
            process.wait(PATIENCE)
        finally:
            process.kill()


def until_ready(url: str) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/docs", timeout=PATIENCE)
        except httpx.TransportError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the server did not start")


def runs(receiver: Receiver) -> list[Any]:
    """Return the spans of runs."""
    return [span for span in receiver.spans if span.name == "invoke_agent web"]


async def ask(url: str, count: int) -> dict[str, str]:
    """Ask questions at the same time, each in a trace of its own; return the questions by trace."""
    questions = {f"{number:032x}": f"question {number}" for number in range(1, count + 1)}

    async def get(http: httpx.AsyncClient, trace: str, question: str) -> None:
        headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        answer = await http.get("/answer", params={"text": question}, headers=headers)
        assert answer.json() == f"answer to {question}"

    limits = httpx.Limits(max_connections=None)
    with anyio.fail_after(PATIENCE):
        async with (
            httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits) as http,
            anyio.create_task_group() as tasks,
        ):
            for trace, question in questions.items():
                tasks.start_soon(get, http, trace, question)
    return questions


def test_requests_at_the_same_time_and_a_stop_in_the_middle() -> None:
    """Each of 100 is a trace of its own; a stop ends open runs at once, and nothing of them is lost."""
    port, metrics = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    with otlp_receiver("http/protobuf") as receiver:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "METRICS_PORT": str(metrics)}
        with (
            started("uvicorn", "support.web_app:app", "--port", str(port), **environment) as server,
            ExitStack() as ends,
        ):
            until_ready(url)
            questions = anyio.run(ask, url, 100)
            family = scrape(f"http://127.0.0.1:{metrics}/metrics")["gen_ai_invoke_agent_duration_seconds"]
            counts = [value for (name, _), value in values(family).items() if name.endswith("_count")]
            assert counts == [100]

            http = ends.enter_context(httpx.Client(base_url=url, timeout=PATIENCE))
            streams = [ends.enter_context(http.stream("GET", "/stream?text=wait")) for _ in range(3)]
            lines = [stream.iter_lines() for stream in streams]
            for line in lines:
                assert "event: tool.started" in line  # reads up to it
            server.send_signal(signal.SIGTERM)
            states = [events("\n".join(["", *line]).partition("\n\n")[2])[-1] for line in lines]
            assert [(name, state["status"]) for _, name, state in states] == [("run", "cancelled")] * 3
            server.wait(PATIENCE)
        assert receiver.faults == []
        by_trace = {span.trace_id.hex(): str(span) for span in runs(receiver)}
        assert len(by_trace) == len(runs(receiver)) == 103
        for trace, question in questions.items():
            assert f'{question}\\"' in by_trace[trace]
            names = [span.name for span in receiver.spans if span.trace_id.hex() == trace]
            assert (names.count("GET /answer"), names.count("execute_tool look_up"), len(names)) == (
                1,
                1,
                len(set(names)) + 3,
            )
        outcomes = [attributes_of(span)["pellucid.outcome"] for span in runs(receiver)]
        assert (outcomes.count("completed"), outcomes.count("cancelled")) == (100, 3)
        assert set(receiver.unresolved_parents()) == {"GET /answer"}


def test_workers_that_are_replaced_lose_nothing(tmp_path: Path) -> None:
    """With gunicorn, preload, after a run before the fork: all spans and measurements of all workers arrive."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    (tmp_path / "conf.py").write_text(GUNICORN)
    with otlp_receiver("http/protobuf") as receiver:
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "RUN_AT_IMPORT": "1"}
        command = ("gunicorn", "--config", str(tmp_path / "conf.py"), "--bind", f"127.0.0.1:{port}")
        with started(*command, **environment):
            until_ready(url)
            answered = 0
            while answered < 100:
                try:
                    answered += httpx.get(f"{url}/answer?text=x", timeout=PATIENCE).status_code == 200
                except httpx.TransportError:  # a worker ended after it accepted the connection
                    continue
        assert receiver.faults == []
        assert len(runs(receiver)) >= answered
        assert len({resource["service.instance.id"] for resource in receiver.resources}) > 4
        counted: dict[str, int] = {}
        for name, request in receiver.requests:
            for part in request.resource_metrics if name == "metrics" else ():
                instance = attributes_of(part.resource)["service.instance.id"]
                for metric in (metric for scope in part.scope_metrics for metric in scope.metrics):
                    if metric.name == "gen_ai.invoke_agent.duration":
                        counted[instance] = sum(point.count for point in metric.exponential_histogram.data_points)
        assert sum(counted.values()) == len(runs(receiver))
