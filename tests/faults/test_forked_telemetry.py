"""Telemetry of forked children: no lock and no count of the parent, whatever its threads were doing."""

from __future__ import annotations

import os

import pytest

from support.otlp_receiver import otlp_receiver
from support.processes import run_python

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork"),
    pytest.mark.parametrize("recorder", ["fast", "sdk"]),
]


def test_a_forked_child_starts_at_zero(recorder: str) -> None:
    """Counters and histograms of any scope, also those that wait, while a collection of the parent holds the locks."""
    run_python(
        """
        import os, sys, threading, traceback, warnings
        from opentelemetry.sdk.metrics import Histogram
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
        from pellucid_exporters.recorder.providers import make_meter_provider

        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        readers = (
            InMemoryMetricReader(),
            InMemoryMetricReader(preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation()}),
        )
        provider = make_meter_provider(sys.argv[1], readers, shutdown_on_exit=False)
        meters = [provider.get_meter(scope) for scope in ("pellucid", "app")]
        uses = [use for meter in meters for use in (
            meter.create_counter("c").add, meter.create_up_down_counter("u").add, meter.create_histogram("h").record,
        )]

        def measure(times):
            for _ in range(times):
                for use in uses:
                    use(2.0, {"a": 1})

        def totals(reader):
            (resource,) = reader.get_metrics_data().resource_metrics
            points = [
                point for scope in resource.scope_metrics for metric in scope.metrics if metric.name != "g"
                for point in metric.data.data_points
            ]
            assert len(points) == len(uses)
            return {getattr(point, "sum", None) or point.value for point in points}

        measure(3)
        assert totals(readers[0]) == {6.0}
        is_held, is_over = threading.Event(), threading.Event()

        def hold(_):
            is_held.set()
            is_over.wait()
            return []

        callbacks = [hold]
        meters[1].create_observable_gauge("g", [lambda options: callbacks[0](options)])
        collecting = threading.Thread(target=readers[0].collect)
        collecting.start()
        is_held.wait()
        measure(1)
        if (child := os.fork()) == 0:
            try:
                callbacks[0] = lambda _: []
                readers[0]._lock = threading.RLock()  # of the reader itself: this one is for tests only
                measure(2)
                assert [totals(reader) for reader in readers] == [{4.0}] * 2
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        is_over.set()
        collecting.join()
        assert os.waitpid(child, 0)[1] == 0
        assert [totals(reader) for reader in readers] == [{8.0}] * 2
        """,
        recorder,
    )


def test_a_child_makes_an_instrument_that_its_parent_was_making(recorder: str) -> None:
    """The SDK notes an instrument's name before the instrument; a fork in between leaves the child the name only."""
    run_python(
        """
        import os, sys, threading, traceback, warnings
        from opentelemetry.sdk.metrics import _internal
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from pellucid_exporters.recorder.providers import make_meter_provider

        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        provider = make_meter_provider(sys.argv[1], (InMemoryMetricReader(),), shutdown_on_exit=False)
        is_making, is_forked = threading.Event(), threading.Event()
        make = _internal._Histogram

        class Slow:
            def __new__(cls, *args, **options):
                is_making.set()
                is_forked.wait()
                return make(*args, **options)

        Slow.__name__ = make.__name__

        meter = provider.get_meter("pellucid")
        _internal._Histogram = Slow
        thread = threading.Thread(target=meter.create_histogram, args=("h",))
        thread.start()
        is_making.wait()
        if (child := os.fork()) == 0:
            try:
                _internal._Histogram = make
                meter.create_histogram("h").record(1.0)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        is_forked.set()
        thread.join()
        assert os.waitpid(child, 0)[1] == 0
        """,
        recorder,
    )


def test_children_forked_while_threads_record_do_not_hang(recorder: str) -> None:
    """Three threads record spans and measurements of other scopes and of Pellucid; each child records and flushes."""
    with otlp_receiver("http/protobuf") as receiver:
        run_python(
            """
            import os, signal, sys, threading, warnings
            from pellucid_exporters import configure

            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
            telemetry = configure("shop", otlp=sys.argv[2], recorder=sys.argv[1])

            def record(scope, number):
                meter = telemetry.meter_provider.get_meter(scope)
                meter.create_counter("c").add(1, {"n": number % 50})
                meter.create_histogram("h").record(number % 1000, {"n": number % 50})
                meter.create_gauge("g").set(number)
                with telemetry.tracer_provider.get_tracer(scope).start_as_current_span("s") as span:
                    span.set_attribute("n", number)

            over = threading.Event()

            def record_always(number):
                while not over.is_set():
                    number += 1
                    for scope in ("app", "opentelemetry.instrumentation.x", "pellucid"):
                        record(scope, number)

            threads = [threading.Thread(target=record_always, args=(1000 * n,), daemon=True) for n in range(3)]
            for thread in threads:
                thread.start()
            children = []
            for _ in range(12):
                if (child := os.fork()) == 0:
                    signal.alarm(60)
                    for scope in ("app", "opentelemetry.instrumentation.x", "pellucid"):
                        record(scope, 0)
                    is_sent = telemetry.flush(50)
                    os._exit(0 if is_sent else 1)
                children.append(child)
            over.set()
            ends = [os.waitpid(child, 0)[1] for child in children]
            assert ends == [0] * 12, ends
            os._exit(0)
            """,
            recorder,
            receiver.endpoint,
        )
        assert len({resource["service.instance.id"] for resource in receiver.resources}) >= 12
        assert receiver.faults == []


def test_metrics_in_the_childs_own_server_are_the_childs(recorder: str) -> None:
    """The application that a server forked after configure() names the child's instance, and counts from zero."""
    run_python(
        """
        import os, re, sys, traceback, warnings
        from pellucid_exporters import configure

        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        telemetry = configure("shop", prometheus=0, recorder=sys.argv[1])
        count = telemetry.meter_provider.get_meter("pellucid").create_counter("c").add
        count(3)

        def scraped():
            text = telemetry.metrics_app.answer("GET", "", {}).body.decode()
            instance = re.search('service_instance_id="([^"]+)"', text)
            return float(re.search("^c_total.* (.+)$", text, re.MULTILINE)[1]), instance[1]

        total, instance = scraped()
        assert total == 3
        if (child := os.fork()) == 0:
            try:
                count(1)
                assert scraped()[0] == 1
                assert scraped()[1] != instance
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert scraped() == (3, instance)
        os._exit(0)
        """,
        recorder,
    )
