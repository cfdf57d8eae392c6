"""Meter provider whose synchronous instruments of Pellucid's own scopes record in a few microseconds.

It is the SDK's provider, with the SDK's instruments, views, aggregations, limits and collection. Other scopes get the
SDK's own meters. For Pellucid's scopes, the way of a measurement to its aggregations differs: an instrument finds the
series by the attributes as they are given and appends to a queue; 256 measurements, or those that wait at a collection,
are aggregated together. The aggregations then hold what the SDK's instruments would have brought there, down to the
order of additions.

Limits: a measurement that the callback of an observable instrument records is part of the next collection, not of the
one that calls it; and exemplars, whose spans are remembered by their contexts, are offered to reservoirs when they are
collected (to those of a view when they are aggregated).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics
from opentelemetry.metrics import CallbackT
from opentelemetry.sdk.metrics import Meter, MeterProvider

from pellucid_exporters.recorder.forks import start_anew_in_child
from pellucid_exporters.recorder.metrics.instruments import (
    Recorded,
    RecordedCounter,
    RecordedGauge,
    RecordedHistogram,
    RecordedT,
    RecordedUpDownCounter,
)
from pellucid_exporters.recorder.metrics.measurements import exclusive
from pellucid_exporters.recorder.names import is_own
from pellucid_exporters.sdk_internals import ApiGauge

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import ExemplarFilter
    from opentelemetry.sdk.metrics.export import MetricReader, MetricsData
    from opentelemetry.sdk.metrics.view import View
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.util.types import Attributes


class RecorderMeterProvider(MeterProvider):
    """The SDK's provider with faster synchronous instruments; arguments and behaviour are the SDK's.

    It relies on private parts of the SDK: ask `needs_sdk` before.
    """

    def __init__(
        self,
        metric_readers: Sequence[MetricReader] = (),
        resource: Resource | None = None,
        exemplar_filter: ExemplarFilter | None = None,
        shutdown_on_exit: bool = True,
        views: Sequence[View] = (),
    ) -> None:
        self._recorded: dict[Any, Recorded] = {}
        self._recorder_meters: dict[Meter, _RecorderMeter] = {}
        super().__init__(metric_readers, resource, exemplar_filter, shutdown_on_exit, views)
        for reader in metric_readers:
            reader._set_collect_callback(self._collect)  # type: ignore[arg-type]  # the SDK's own does not match either
        start_anew_in_child(self)

    def get_meter(
        self, name: str, version: str | None = None, schema_url: str | None = None, attributes: Attributes = None
    ) -> metrics.Meter:
        """Return the meter of a scope; after shutdown, or without a name, one that does nothing."""
        meter = super().get_meter(name, version, schema_url, attributes)
        if not isinstance(meter, Meter) or not is_own(name):
            return meter
        return self._recorder_meters.setdefault(meter, _RecorderMeter(meter, self))

    def add_metric_reader(self, metric_reader: MetricReader) -> None:
        """Add a reader; it reads what is recorded from now on."""
        self._aggregate()
        super().add_metric_reader(metric_reader)
        if metric_reader in self._measurement_consumer._reader_storages:
            metric_reader._set_collect_callback(self._collect)  # type: ignore[arg-type]  # the SDK's own does not match either

    def _set_meter_configurator(self, *, meter_configurator: Any) -> None:
        self._aggregate()  # what was recorded while a meter was enabled, or disabled
        super()._set_meter_configurator(meter_configurator=meter_configurator)

    def recorded(self, kind: type[RecordedT], instrument: Any) -> RecordedT:
        """Return the instrument that stands for one of the SDK's."""
        if instrument not in self._recorded:
            self._recorded.setdefault(instrument, kind(instrument, self._measurement_consumer))
        recorded = self._recorded[instrument]
        assert isinstance(recorded, kind)
        return recorded

    def _collect(self, reader: MetricReader, timeout_millis: float = 10_000) -> MetricsData | None:
        self._aggregate()
        if storage := self._measurement_consumer._reader_storages.get(reader):
            for each in list(self._recorded.values()):
                each.recording.offer_exemplars(storage)
        with exclusive():
            return self._measurement_consumer.collect(reader, timeout_millis)

    def _aggregate(self) -> None:
        for each in list(self._recorded.values()):
            each.recording.aggregate()


class _RecorderMeter(metrics.Meter):
    """Meter of the SDK whose synchronous instruments are replaced; observable ones are the SDK's."""

    def __init__(self, meter: Meter, provider: RecorderMeterProvider) -> None:
        super().__init__(meter.name, meter.version, meter.schema_url)
        self._meter, self._provider = meter, provider

    def create_counter(self, name: str, unit: str = "", description: str = "") -> metrics.Counter:
        return self._provider.recorded(RecordedCounter, self._meter.create_counter(name, unit, description))

    def create_up_down_counter(self, name: str, unit: str = "", description: str = "") -> metrics.UpDownCounter:
        instrument = self._meter.create_up_down_counter(name, unit, description)
        return self._provider.recorded(RecordedUpDownCounter, instrument)

    def create_histogram(
        self,
        name: str,
        unit: str = "",
        description: str = "",
        *,
        explicit_bucket_boundaries_advisory: Sequence[float] | None = None,
    ) -> metrics.Histogram:
        instrument = self._meter.create_histogram(
            name, unit, description, explicit_bucket_boundaries_advisory=explicit_bucket_boundaries_advisory
        )
        return self._provider.recorded(RecordedHistogram, instrument)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> ApiGauge:
        return self._provider.recorded(RecordedGauge, self._meter.create_gauge(name, unit, description))

    def create_observable_counter(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> metrics.ObservableCounter:
        return self._meter.create_observable_counter(name, callbacks, unit, description)

    def create_observable_up_down_counter(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> metrics.ObservableUpDownCounter:
        return self._meter.create_observable_up_down_counter(name, callbacks, unit, description)

    def create_observable_gauge(
        self, name: str, callbacks: Sequence[CallbackT] | None = None, unit: str = "", description: str = ""
    ) -> metrics.ObservableGauge:
        return self._meter.create_observable_gauge(name, callbacks, unit, description)
