"""Trial whether the installed SDK supports the recorder, which relies on private parts of it."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics import AlwaysOnExemplarFilter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import Attributes

from pellucid import semconv

if TYPE_CHECKING:
    from collections.abc import Iterator

_ATTRIBUTES: Final[tuple[Attributes, ...]] = ({"a": 1, "b": "x"}, {"b": "x", "a": 1}, {"a": True}, None)
_AMOUNTS: Final = (0.5, 3.0, 0.0, 1e-9, 2.0, 3.0, 1e9, 2.1, 2.2)


def needs_sdk() -> str | None:
    """Return why the SDK's `MeterProvider` must be used instead of `RecorderMeterProvider`, or `None` if it need not.

    The reason is the SDK's version: it lacks a private part, or both count a few measurements differently. Views,
    temporalities, aggregations and readers of any kind are supported: storage and collection are the SDK's.
    """
    try:
        from pellucid_exporters.recorder.metrics.provider import RecorderMeterProvider

        if list(_collected(RecorderMeterProvider)) == list(_collected(MeterProvider)):
            return None
        reason = "it counts differently"
    except Exception as error:  # noqa: BLE001  (what a missing part causes is unknown, and the SDK itself is there)
        reason = f"{type(error).__name__}: {error}"
    return (
        f"opentelemetry-sdk {version('opentelemetry-sdk')} does not support Pellucid's recorder of metrics ({reason})"
    )


def _collected(kind: type[MeterProvider]) -> Iterator[Any]:
    """Record with instruments of a provider and yield what is collected, without times and random exemplars."""
    readers = (
        InMemoryMetricReader(),
        *(
            InMemoryMetricReader(preferred_aggregation={Histogram: ExponentialBucketHistogramAggregation(max_size)})
            for max_size in (160, 8)  # for buckets found by logarithms, and by exponents
        ),
    )
    provider = kind(readers, Resource({}), AlwaysOnExemplarFilter(), shutdown_on_exit=False)
    meter = provider.get_meter(f"{semconv.SCOPE}.trial")
    record = meter.create_histogram("histogram").record
    add, set_ = meter.create_counter("counter").add, meter.create_gauge("gauge").set
    for attributes in _ATTRIBUTES:
        for amount in _AMOUNTS:
            for use in (record, add, set_):
                use(amount, attributes)
        for reader in readers:
            data = reader.get_metrics_data()
            for metric in data.resource_metrics[0].scope_metrics[0].metrics if data is not None else ():
                for point in metric.data.data_points:
                    yield (
                        metric.name,
                        len(point.exemplars),
                        replace(point, start_time_unix_nano=0, time_unix_nano=0, exemplars=()),
                    )
    provider.shutdown()
