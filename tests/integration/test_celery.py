"""Agents in tasks of Celery, with a real worker and its pool of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.otlp_receiver import otlp_receiver
from support.processes import PATIENCE
from support.redis_server import redis_server

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parent.parent
WORKER = ("celery", "--quiet", "--app", "support.celery_app", "worker", "--loglevel", "warning", "--without-mingle")


@pytest.mark.parametrize(
    "settings", [{}, {"INSTRUMENTED": "1"}], ids=["each-process", "before-the-fork-with-instrumentation"]
)
def test_a_trace_continues_across_the_queue(settings: Mapping[str, str]) -> None:
    """A task, one that it starts, a chain and a retry are one trace, with the baggage; ended processes lose nothing."""
    variables = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    with redis_server() as redis, otlp_receiver("http/protobuf") as receiver:
        environment = {
            **variables,
            **settings,
            "REDIS_URL": redis,
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        }
        with subprocess.Popen(
            [sys.executable, "-m", *WORKER], cwd=TESTS, env=environment, start_new_session=True
        ) as worker:
            try:
                command = [sys.executable, "-m", "support.celery_app", "2"]
                sent = subprocess.run(
                    command, cwd=TESTS, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
                )
                assert sent.returncode == 0, sent.stderr
                worker.terminate()
                worker.wait(PATIENCE)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)  # its processes, too
        assert sent.stdout.splitlines() == [f" question {n}:t{n} retried:t{n} last:t{n}" for n in range(2)]
        assert receiver.faults == []
        assert receiver.unresolved_parents() == []
        traces = {span.name: span.trace_id for span in receiver.spans if span.name.startswith("caller")}
        runs = [span for span in receiver.spans if span.name == "invoke_agent orders" and span.parent_span_id]
        # Of each caller: the first task, the one that the second starts, the one that retries, and the last.
        assert Counter(span.trace_id for span in runs) == dict.fromkeys(traces.values(), 4)
        names = Counter(span.name for span in receiver.spans)
        assert names["run/retry"] == (4 if settings else 0)
        # The caller, and each process of the pool, which ends after three tasks.
        assert len({resource["service.instance.id"] for resource in receiver.resources}) > 3
