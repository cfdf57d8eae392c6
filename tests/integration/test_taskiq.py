"""The example for Taskiq, with a real worker and broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry.trace import get_current_span
from taskiq import InMemoryBroker
from taskiq.middlewares.opentelemetry_middleware import OpenTelemetryMiddleware

from pellucid import Agent
from pellucid.testing import ScriptedModel
from pellucid_exporters.taskiq import TraceMiddleware
from support.otlp_receiver import otlp_receiver
from support.processes import PATIENCE
from support.redis_server import redis_server

if TYPE_CHECKING:
    from pellucid_exporters.testing import Captured

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_trace_continues_across_the_queue() -> None:
    """The run is below the span of the caller; the worker sends the rest when it ends."""
    with redis_server() as redis, otlp_receiver("http/protobuf") as receiver:
        variables = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
        environment = {**variables, "REDIS_URL": redis, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint}
        command = [sys.executable, "-m", "taskiq", "worker", "taskiq_worker:broker", "--workers", "1"]
        with subprocess.Popen(command, cwd=EXAMPLES, env=environment, start_new_session=True) as worker:
            try:
                command = [sys.executable, "taskiq_worker.py"]
                sent = subprocess.run(
                    command,
                    cwd=EXAMPLES,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=PATIENCE,
                    check=False,
                )
                assert sent.stdout == "It arrives tomorrow.\n", sent.stderr
                worker.send_signal(signal.SIGTERM)
                worker.wait(PATIENCE)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(worker.pid, signal.SIGKILL)  # its processes, too
        assert receiver.faults == []
        by_name = {span.name: span for span in receiver.spans}
        run, caller = by_name["invoke_agent orders"], by_name["POST /orders"]
        assert (run.trace_id, run.parent_span_id) == (caller.trace_id, caller.span_id)
        assert len({resource["service.instance.id"] for resource in receiver.resources}) == 2


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("is_first", [True, False])
async def test_the_middleware_of_taskiq_keeps_its_spans(
    anyio_backend: str, telemetry: Captured, *, is_first: bool
) -> None:
    """The run is below the span of the task, in either order of the two, also if an earlier task has failed."""
    own, theirs = TraceMiddleware(), OpenTelemetryMiddleware(telemetry.tracer_provider, telemetry.meter_provider)
    broker = InMemoryBroker(await_inplace=True).with_middlewares(*([own, theirs] if is_first else [theirs, own]))
    agent = Agent("orders", model=ScriptedModel("Tomorrow."))

    @broker.task(task_name="answer")
    async def answer(question: str) -> str:
        if not question:
            raise ValueError
        return (await agent.run(question)).output

    with telemetry.tracer_provider.get_tracer("t").start_as_current_span("caller") as caller:
        await answer.kiq("")
        await answer.kiq("Where?")
        assert get_current_span() is caller
    [run], [_, task] = telemetry.find("invoke_agent orders"), telemetry.find("execute/answer")
    assert run.parent == task.context
    assert {span.context.trace_id for span in telemetry.spans} == {caller.get_span_context().trace_id}
