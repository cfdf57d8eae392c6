"""Telemetry of functions that are frozen between invocations."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from opentelemetry import trace

from pellucid_exporters import Otlp, configure
from pellucid_exporters.serverless import flush_after
from support.otlp_receiver import attributes_of, otlp_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

TRACE = "0af7651916cd43dd8448eb211c80319c"
FUNCTION = f"""
import sys
from lambda_handler import handler
for line in sys.stdin:
    event = {{"headers": {{"traceparent": "00-{TRACE}-b7ad6b7169203331-01"}}}}
    if line != "fail\\n":
        event["body"] = line
    try:
        handler(event, None)
    except KeyError:
        pass
    print("answered", flush=True)
"""


class Context:
    """Context of an invocation as AWS Lambda passes it, with half a second left."""

    def get_remaining_time_in_millis(self) -> int:
        """Return milliseconds."""
        return 510


def test_a_function_is_frozen_between_invocations() -> None:
    """All telemetry of an invocation has arrived when it returns: nothing is sent later, and nothing is lost."""
    with otlp_receiver("http/protobuf") as receiver:
        command = [sys.executable, "-c", FUNCTION]
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        examples = Path(__file__).parents[2] / "examples"
        with subprocess.Popen(
            command, cwd=examples, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as function:
            assert function.stdin is not None
            assert function.stdout is not None
            try:
                for count, question in enumerate(("Where is order 17?", "fail", "Where is order 18?"), 1):
                    function.send_signal(signal.SIGCONT)
                    function.stdin.write(f"{question}\n")
                    function.stdin.flush()
                    assert function.stdout.readline() == "answered\n"
                    function.send_signal(signal.SIGSTOP)
                    runs = [span for span in receiver.spans if span.name == "invoke_agent orders"]
                    assert len(runs) == (count + 1) // 2
                    assert {run.trace_id.hex() for run in runs} == {TRACE}
            finally:
                function.kill()
        assert receiver.faults == []
        points = [
            point
            for metric in receiver.metrics
            if metric.name == "gen_ai.invoke_agent.duration"
            for point in metric.exponential_histogram.data_points
        ]
        assert [point.count for point in points] == [1, 1, 2]
        assert not [metric for metric in receiver.metrics if metric.name == "pellucid.telemetry.errors"]
        assert attributes_of(points[0])["gen_ai.agent.name"] == "orders"


@pytest.fixture
def silent_collector() -> Iterator[str]:
    """Return the endpoint of a collector that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_the_time_that_is_left_is_the_limit(silent_collector: str, caplog: pytest.LogCaptureFixture) -> None:
    """A flush takes no longer than the time that is left; an invocation that fails raises its own error."""
    telemetry = configure("orders", otlp=Otlp(endpoint=silent_collector), set_global=False)

    @flush_after(telemetry, timeout=600)
    def handler(event: str, context: Context) -> str:
        with telemetry.tracer_provider.get_tracer("t").start_as_current_span("work") as span:
            assert trace.get_current_span() is span
        raise ValueError(event)

    try:
        with pytest.raises(ValueError, match="order 17"):
            handler("order 17", context=Context())
        assert "did not arrive within 0.01 s" in caplog.text
        assert handler.__name__ == "handler"
    finally:
        telemetry.shutdown(timeout=0)
