"""Counters of export failures, drops and overflows. Failures never reach the run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid.telemetry.metrics import instruments_of

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, MeterProvider

_log: Final = logging.getLogger(__name__)


class Faults:
    """Counters `pellucid.telemetry.errors`, `pellucid.telemetry.dropped` and `pellucid.telemetry.overflows`.

    Exporters are created before the meter provider that counts their failures, hence `bind`.
    """

    __slots__ = ("_dropped", "_errors", "_overflowing", "_overflows")

    def __init__(self) -> None:
        self._errors: Counter | None = None
        self._dropped: Counter | None = None
        self._overflows: Counter | None = None
        self._overflowing: set[str] = set()

    def bind(self, provider: MeterProvider) -> None:
        """Use the instruments of this provider from now on."""
        instruments = instruments_of(provider).by_name
        self._errors = instruments[semconv.TELEMETRY_ERRORS.name]
        self._dropped = instruments[semconv.TELEMETRY_DROPPED.name]
        self._overflows = instruments[semconv.TELEMETRY_OVERFLOWS.name]

    def count_failure(self, part: str = "exporter") -> None:
        """Count a failed export, or an instrument that a scrape omitted."""
        if self._errors is not None:
            self._errors.add(1, {semconv.TELEMETRY_PART: part})

    def count_sampler_fault(self) -> None:
        """Count a rule of the tail sampler that raised."""
        if self._errors is not None:
            self._errors.add(1, {semconv.TELEMETRY_PART: "sampler"})

    def count_drop(self, part: str, reason: str, items: int) -> None:
        """Count lost items, such as spans or log records.

        Reasons: `queue_full`, `export_failed`, `rejected` by the receiver, `too_large`, `not_encodable`, `shutdown`.
        """
        if self._dropped is not None:
            self._dropped.add(items, {semconv.TELEMETRY_PART: part, semconv.TELEMETRY_REASON: reason})

    def count_overflow(self, name: str) -> None:
        """Count and log an instrument that has reached its limit of series, once."""
        if name in self._overflowing or self._overflows is None:
            return
        self._overflowing.add(name)
        self._overflows.add(1, {semconv.METRIC_NAME: name})
        _log.warning(
            "%s has reached its limit of series: further label sets share one, with the label otel.metric.overflow; "
            "raise configure(metric_limits=MetricLimits(series=...)), or make fewer by its tools=, agents= or without=",
            name,
        )
