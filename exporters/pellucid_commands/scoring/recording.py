"""Recording of scores: into the store, and by OTLP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider

from pellucid.scores.record import record
from pellucid.telemetry.pipeline import TelemetryOptions
from pellucid_exporters.local.score_writer import ScoreWriter

if TYPE_CHECKING:
    from pellucid.scores import Score, Scored
    from pellucid.telemetry import Pipeline


class Recorder:
    """Destinations of scores: a store, and the telemetry of this process, which does not write them into the store."""

    def __init__(self, store: Path, telemetry: Pipeline, *, is_once: bool) -> None:
        """Create a recorder; with `is_once`, scores that the run has already are left out."""
        self._writer, self._is_once = ScoreWriter(store), is_once
        self._sent = TelemetryOptions(
            tracer_provider=telemetry.tracer_provider,
            meter_provider=telemetry.meter_provider,
            log_sinks=telemetry.log_sinks,
            capture=telemetry.capture,
            listeners=(),
            catalog_sinks=(),
        )

    def record(self, scored: Scored, scores: Sequence[Score]) -> Sequence[Score]:
        """Record the scores of a run in one transaction of the store, and then send them; return what was recorded.

        Raises:
            OSError, StoreError, sqlite3.Error: the store cannot be written to; nothing was recorded.
        """
        events: list[Any] = []
        collecting = TelemetryOptions(
            tracer_provider=NoOpTracerProvider(),
            meter_provider=NoOpMeterProvider(),
            log_sinks=(),
            listeners=(("score.recorded", events.append),),
            catalog_sinks=(),
        )
        nobody = replace(scored, agent="")  # listeners of an agent hear of what is written, below
        for score in scores:
            record(nobody, score, collecting)
        written = self._writer.write(events, is_once=self._is_once)
        recorded = [score for score, is_written in zip(scores, written, strict=True) if is_written]
        for score in recorded:
            record(scored, score, self._sent)
        return recorded

    def close(self) -> None:
        """Close the store."""
        self._writer.close()
