"""Synchronous instruments that record through a queue; an amount that the SDK rejects is the SDK's to log."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeVar

from opentelemetry import metrics

from pellucid_exporters.recorder.metrics.measurements import Measurements
from pellucid_exporters.sdk_internals import ApiGauge

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.util.types import Attributes

    from pellucid_exporters.sdk_internals import SynchronousMeasurementConsumer


_REAL: Final[tuple[type, ...]] = (int, float)


class Recorded(metrics.Synchronous):
    """Instrument that stands for one of the SDK's, with the same name, unit, description and scope."""

    def __init__(self, instrument: Any, consumer: SynchronousMeasurementConsumer) -> None:
        self.name, self.unit, self.description = instrument.name, instrument.unit, instrument.description
        self.instrumentation_scope = instrument.instrumentation_scope
        self.recording = Measurements(instrument, consumer)
        self._sdk = instrument
        self._record = self.recording.add


RecordedT = TypeVar("RecordedT", bound=Recorded)


class RecordedCounter(Recorded, metrics.Counter):
    """Counter that records through a queue."""

    def add(self, amount: float, attributes: Attributes = None, context: Context | None = None) -> None:
        """Add an amount that is not negative."""
        if isinstance(amount, _REAL) and isfinite(amount) and amount >= 0:
            self._record(amount, attributes, context)
        else:
            self.recording.aggregate()
            self._sdk.add(amount, attributes, context)


class RecordedUpDownCounter(Recorded, metrics.UpDownCounter):
    """Counter of both directions that records through a queue."""

    def add(self, amount: float, attributes: Attributes = None, context: Context | None = None) -> None:
        """Add an amount."""
        if isinstance(amount, _REAL) and isfinite(amount):
            self._record(amount, attributes, context)
        else:
            self.recording.aggregate()
            self._sdk.add(amount, attributes, context)


class RecordedHistogram(Recorded, metrics.Histogram):
    """Histogram that records through a queue."""

    def record(self, amount: float, attributes: Attributes = None, context: Context | None = None) -> None:
        """Record an amount that is not negative."""
        if isinstance(amount, _REAL) and isfinite(amount) and amount >= 0:
            self._record(amount, attributes, context)
        else:
            self.recording.aggregate()
            self._sdk.record(amount, attributes, context)


class RecordedGauge(Recorded, ApiGauge):
    """Gauge that records through a queue."""

    def set(self, amount: float, attributes: Attributes = None, context: Context | None = None) -> None:
        """Set the current value."""
        if isinstance(amount, _REAL) and isfinite(amount):
            self._record(amount, attributes, context)
        else:
            self.recording.aggregate()
            self._sdk.set(amount, attributes, context)
