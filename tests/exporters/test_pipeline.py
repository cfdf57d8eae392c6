"""Putting the pipeline together, and ending it in time whatever the collector does."""

from __future__ import annotations

import io
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

from pellucid import Agent, semconv
from pellucid.telemetry.pipeline import current_default
from pellucid.testing import ScriptedModel
from pellucid_exporters import configure
from pellucid_exporters.console import Console
from pellucid_exporters.options import (
    Otlp,
    Prometheus,
)
from support.openmetrics import scrape
from support.otlp_receiver import otlp_receiver
from support.ports import free_port
from support.processes import PATIENCE, run_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid_exporters.options import OtlpProtocol
    from pellucid_exporters.telemetry import Telemetry

PROTOCOLS = ["http/protobuf", "grpc"]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No `OTEL_*` variable of the machine reaches a test."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


@contextmanager
def silent_collector() -> Iterator[str]:
    """Listen without ever answering."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def absent_collector() -> Iterator[str]:
    """Refuse connections: the port is taken, but nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def emit(telemetry: Telemetry, name: str = "run") -> None:
    """End one span, count once and write one log line."""
    telemetry.tracer_provider.get_tracer(semconv.SCOPE).start_span(name).end()
    telemetry.meter_provider.get_meter(semconv.SCOPE).create_counter("test.count").add(1)
    for sink in telemetry.log_sinks:
        sink({"event": name, "level": "info"})


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("collector", [absent_collector, silent_collector])
def test_a_dead_collector_holds_nobody_up(
    collector: Any, protocol: OtlpProtocol, caplog: pytest.LogCaptureFixture
) -> None:
    """Recording goes on, flush() says no at its deadline, and so does shutdown(), which then does nothing again.

    When the collector has gone, no thread is left.
    """
    before = set(threading.enumerate())
    with collector() as endpoint, caplog.at_level(logging.CRITICAL):
        telemetry = configure(
            "shop",
            otlp=Otlp(endpoint=endpoint, protocol=protocol, timeout=60.0),
            prometheus=Prometheus(port=0),
            set_global=False,
        )
        emit(telemetry)
        started = time.monotonic()
        assert not telemetry.flush(0.3)
        assert not telemetry.flush(0.3)
        emit(telemetry)
        assert time.monotonic() - started < 30
        telemetry.shutdown(0.3)
        telemetry.shutdown(60)
        assert time.monotonic() - started < 30
        assert telemetry.prometheus_url is None
        assert not telemetry.flush(60)
        emit(telemetry)
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread


def test_spans_for_which_there_is_no_room_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue is as long as `OTEL_BSP_MAX_QUEUE_SIZE` says; what does not fit is dropped and counted."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    with silent_collector() as endpoint, caplog.at_level(logging.CRITICAL):
        otlp = Otlp(endpoint=endpoint, metrics=False, logs=False, timeout=60.0)
        telemetry = configure("shop", otlp=otlp, prometheus=Prometheus(port=0), set_global=False)
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        for _ in range(99):
            tracer.start_span("fits").end()
        assert dropped(telemetry) == 0
        for _ in range(301):  # one batch may be under way to the collector
            tracer.start_span("may not fit").end()
        assert 200 <= dropped(telemetry) <= 300
        telemetry.shutdown(0.1)


def dropped(telemetry: Telemetry) -> float:
    """Read `pellucid.telemetry.dropped` from `/metrics`."""
    families = scrape(telemetry.prometheus_url)
    if "pellucid_telemetry_dropped" not in families:
        return 0
    (sample,) = families["pellucid_telemetry_dropped"].samples
    assert sample.labels == {"pellucid_telemetry_part": "span", "pellucid_telemetry_reason": "queue_full"}
    return float(sample.value)


def test_runs_are_shown_in_the_terminal() -> None:
    """With a console, each run is written when it ends, and nothing else is started."""
    stream = io.StringIO()
    telemetry = configure("shop", console=Console(stream=stream, live=False), set_global=False)
    try:
        tracer = telemetry.tracer_provider.get_tracer(semconv.SCOPE)
        attributes = {semconv.OPERATION_NAME: semconv.INVOKE_AGENT, semconv.PHASE: semconv.RUN}
        with tracer.start_as_current_span("invoke_agent shop", attributes=attributes):
            pass
        assert telemetry.flush()
        assert "shop" in stream.getvalue()
        assert (telemetry.prometheus_url, telemetry.log_sinks) == (None, ())
    finally:
        telemetry.shutdown()


def test_shutdown_delivers_what_is_waiting() -> None:
    """Nothing has to be flushed before a shutdown."""
    with otlp_receiver("http/protobuf") as receiver:
        telemetry = configure("shop", otlp=Otlp(endpoint=receiver.endpoint), set_global=False)
        emit(telemetry, "last words")
        telemetry.shutdown()
        assert [span.name for span in receiver.spans] == ["last words"]
        assert "test.count" in {metric.name for metric in receiver.metrics}
        assert [record.body.string_value for record in receiver.logs] == ["last words"]


def test_an_exit_delivers_what_is_waiting() -> None:
    """A process that just ends has sent its spans, and the environment chose the service's name and the sampler."""
    with otlp_receiver("http/protobuf") as receiver:
        run_python(
            """
            from opentelemetry import trace
            from pellucid_exporters import configure

            configure("shop")
            trace.get_tracer("test").start_span("last words").end()
            """,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            OTEL_SERVICE_NAME="shop-canary",
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test",
        )
        assert [span.name for span in receiver.spans] == ["last words"]
        assert {found["service.name"] for found in receiver.resources} == {"shop-canary"}
        assert receiver.resources[0]["deployment.environment.name"] == "test"
        run_python(
            """
            from opentelemetry import trace
            from pellucid_exporters import configure

            configure("shop")
            trace.get_tracer("test").start_span("not sampled").end()
            """,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.endpoint,
            OTEL_TRACES_SAMPLER="always_off",
        )
        assert [span.name for span in receiver.spans] == ["last words"]


def test_an_exit_does_not_wait_for_a_dead_collector() -> None:
    """The process ends within its deadline although the collector never answers."""
    with silent_collector() as endpoint:
        started = time.monotonic()
        run_python(
            f"""
            from pellucid_exporters import Otlp, configure

            telemetry = configure("shop", otlp=Otlp(endpoint={endpoint!r}, timeout=60.0))
            telemetry.tracer_provider.get_tracer("test").start_span("lost").end()
            """
        )
        assert time.monotonic() - started < 30


def test_configure_once() -> None:
    """The same arguments give the same Telemetry, others are refused, and after shutdown() there may be a new one."""
    run_python(
        """
        import logging
        from opentelemetry import metrics, trace
        from pellucid.errors import ConfigError
        from pellucid.telemetry.pipeline import current_default
        from pellucid_exporters import Prometheus, configure

        logged = []
        handler = logging.Handler()
        handler.emit = logged.append
        logging.getLogger("pellucid_exporters.pipeline").addHandler(handler)

        first = configure("shop", prometheus=0)
        assert configure("shop", prometheus=Prometheus(port=0)) is first
        assert trace.get_tracer_provider() is first.tracer_provider
        assert metrics.get_meter_provider() is first.meter_provider
        assert current_default() is first
        assert logged == []
        try:
            configure("shop", prometheus=0, otlp="http://localhost:4318")
        except ConfigError as error:
            assert "shutdown()" in str(error)
        else:
            raise AssertionError("accepted")
        first.shutdown()
        assert current_default() is not first

        second = configure("shop", otlp=False)
        assert second is not first and current_default() is second
        assert "global tracer and meter provider was set before" in logged[0].getMessage()
        second.shutdown()
        """
    )


def test_a_failed_configure_leaves_nothing_behind() -> None:
    """After an error nothing listens and another configuration is accepted."""
    run_python(
        """
        import os
        import sys
        from pellucid.errors import ConfigError
        from pellucid_exporters import configure

        port = int(sys.argv[1])
        os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/json"
        try:
            configure("shop", prometheus=port, otlp=True)
        except ConfigError as error:
            assert "http/json" in str(error)
        else:
            raise AssertionError("accepted")
        del os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"]
        telemetry = configure("shop", prometheus=port)
        assert telemetry.prometheus_url == f"http://127.0.0.1:{port}/metrics"
        """,
        free_port(),
    )


def test_the_application_keeps_its_own_globals() -> None:
    """Providers that the application set stay, with a warning; the returned Telemetry has ours."""
    finished = run_python(
        """
        import logging
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from pellucid_exporters import configure

        logging.basicConfig()
        own = TracerProvider()
        trace.set_tracer_provider(own)
        telemetry = configure("shop")
        assert trace.get_tracer_provider() is own
        assert telemetry.tracer_provider is not own
        """
    )
    assert "OpenTelemetry's global tracer provider was set before configure()" in finished.stderr


def test_disabled_by_the_environment() -> None:
    """With `OTEL_SDK_DISABLED=true` nothing is served, sent or recorded, and the application runs on."""
    run_python(
        """
        from pellucid_exporters import configure

        telemetry = configure("shop", otlp="http://127.0.0.1:1", prometheus=0)
        assert telemetry.prometheus_url is None
        assert not telemetry.log_sinks
        assert not telemetry.tracer_provider.get_tracer("test").start_span("run").is_recording()
        assert telemetry.flush()
        """,
        OTEL_SDK_DISABLED="true",
    )


def test_values_of_the_environment_that_cannot_work_are_warned_of() -> None:
    """`configure` logs one line for each, with what would work; right values are not mentioned."""
    code = (
        "import logging; logging.basicConfig(format='%(message)s')\n"
        "from pellucid_exporters import configure\n"
        "configure('demo').shutdown()"
    )
    wrong = {
        "OTEL_TRACES_EXPORTER": "zipkin",
        "OTEL_METRICS_EXPORTER": "otlp,statsd",
        "OTEL_LOGS_EXPORTER": "console",
        "OTEL_SDK_DISABLED": "maybe",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd",
        "PELLUCID_CAPTURE": "most",
    }
    right = {"OTEL_TRACES_SAMPLER": "always_on", "OTEL_BSP_SCHEDULE_DELAY": "100"}
    lines = run_python(code, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="http://127.0.0.1:9", **wrong, **right).stderr
    for name in wrong:
        assert f"the environment variable {name} " in lines
    assert "use otlp, console, none" in lines
    assert not [name for name in right if name in lines]


def test_grpc_is_loaded_only_when_asked_for() -> None:
    """OTLP over HTTP does not load the gRPC library."""
    code = """if True:
        import sys
        from pellucid_exporters import configure

        configure("shop", otlp="http://127.0.0.1:1", prometheus=0).shutdown(0.1)
        assert "grpc" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_forked_child_goes_on() -> None:
    """A child sends its own spans over its own connection, once, and leaves /metrics and its port to the parent."""
    with otlp_receiver("http/protobuf") as receiver:
        run_python(
            f"""
            import os
            import traceback
            from urllib.request import urlopen
            from pellucid_exporters import configure

            arguments = dict(otlp={receiver.endpoint!r}, prometheus=0)
            telemetry = configure("shop", **arguments)
            tracer = telemetry.tracer_provider.get_tracer("test")
            tracer.start_span("before").end()
            assert telemetry.flush()
            tracer.start_span("waiting").end()
            child = os.fork()
            if child == 0:
                try:
                    assert telemetry.prometheus_url is None
                    assert configure("shop", **arguments) is telemetry
                    tracer.start_span("in the child").end()
                    assert telemetry.flush()
                    telemetry.shutdown()
                    with urlopen(configure("shop", prometheus=0).prometheus_url, timeout=60) as answer:
                        assert answer.status == 200
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            with urlopen(telemetry.prometheus_url, timeout=60) as answer:
                assert answer.status == 200
            """
        )
        assert sorted(span.name for span in receiver.spans) == ["before", "in the child", "waiting"]
        assert receiver.faults == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_child_forked_during_an_export_of_metrics_exports_its_own() -> None:
    """The lock that the export of the parent holds is not waited for."""
    run_python(
        f"""
        import os
        import signal
        import socket
        import threading
        from pellucid_exporters import Otlp, configure

        with socket.create_server(("127.0.0.1", 0)) as collector:
            endpoint = "http://127.0.0.1:%d" % collector.getsockname()[1]
            telemetry = configure("shop", otlp=Otlp(endpoint=endpoint, protocol="http/protobuf", timeout={PATIENCE}))
            meter = telemetry.meter_provider.get_meter("test")
            meter.create_counter("of_parent").add(1)
            threading.Thread(target=telemetry.flush, daemon=True).start()
            unanswered = collector.accept()
            child = os.fork()
            if child == 0:
                meter.create_counter("of_child").add(1)
                telemetry.flush({PATIENCE})
                os._exit(0)
            collector.settimeout({PATIENCE} / 2)
            try:
                connection, _ = collector.accept()
                sent = b""
                while b"of_child" not in sent:
                    received = connection.recv(65536)
                    assert received
                    sent += received
            finally:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        os._exit(0)
        """
    )


def test_a_configuration_that_is_not_that_of_the_process() -> None:
    """Each call returns a new one, beside that of the process; OpenTelemetry's global providers stay."""
    before = trace.get_tracer_provider(), metrics.get_meter_provider()
    first, second = (configure("shop", set_global=False) for _ in range(2))
    assert first.tracer_provider is not second.tracer_provider
    assert current_default() not in (first, second)
    assert (trace.get_tracer_provider(), metrics.get_meter_provider()) == before
    agent = Agent("a", model=ScriptedModel("done"), telemetry=first)
    ended: list[str] = []
    first.tracer_provider.add_span_processor(Ended(ended))
    assert agent.run_sync("go").output == "done"
    assert "invoke_agent a" in ended
    for telemetry in (first, second):
        telemetry.shutdown()


class Ended(SpanProcessor):
    """Names of the spans that have ended."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def on_end(self, span: ReadableSpan) -> None:
        """Note a name."""
        self.names.append(span.name)
