"""Counters of export failures and drops. Failures never reach the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pellucid import semconv
from pellucid.telemetry.metrics import instruments_of

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, MeterProvider


class Faults:
    """Counters `pellucid.telemetry.errors` and `pellucid.telemetry.dropped`.

    Exporters are created before the meter provider that counts their failures, hence `bind`.
    """

    __slots__ = ("_dropped", "_errors")

    def __init__(self) -> None:
        self._errors: Counter | None = None
        self._dropped: Counter | None = None

    def bind(self, provider: MeterProvider) -> None:
        """Use the instruments of this provider from now on."""
        instruments = instruments_of(provider).by_name
        self._errors = instruments[semconv.TELEMETRY_ERRORS.name]
        self._dropped = instruments[semconv.TELEMETRY_DROPPED.name]

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
