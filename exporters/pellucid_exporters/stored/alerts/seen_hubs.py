"""Hubs of a store, as alerts read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pellucid_exporters.alerting.definition import FIVE_MINUTES, MINUTE, Context, Words
from pellucid_exporters.stored import text
from pellucid_exporters.stored.alerts.counts import SECOND, named, percentage
from pellucid_exporters.stored.quantiles import Quantile, quantiles
from pellucid_exporters.stored.reader import Reader
from pellucid_exporters.stored.rows import HubRow


@dataclass(frozen=True, slots=True)
class SeenHubs:
    """Hubs of a store at a moment.

    Attributes:
        rows: The hubs that were asked in the last six hours, by id.
    """

    reader: Reader
    now: int
    context: Context
    rows: Mapping[str, HubRow]

    def objective(self, provider_id: str) -> float | None:
        """Return the latency objective of a hub in seconds."""
        row = self.rows.get(provider_id)
        return row.objective if row is not None else None

    def recent(self, seconds: float) -> Iterator[HubRow]:
        """Yield the hubs that were asked in the last seconds, in whole minutes."""
        yield from self.reader.hubs(first_minute(self.now, seconds), self.now)

    def service(self, exemplar: tuple[str, str] | None) -> str:
        """Return the service of the run of an exemplar."""
        run = self.reader.run(exemplar[0]) if exemplar is not None and exemplar[0] else None
        return run.service if run is not None else ""

    def words(self, provider_id: str, service: str, value: str, **more: str) -> Words:
        """Return the words of an alert on a hub."""
        row, objective = self.rows.get(provider_id), self.objective(provider_id)
        p95 = p95_of(row, self.now) if row is not None else None
        budget = self.context.thresholds.slow_budget
        last = row.last_success if row is not None else None
        return Words(
            subject=named("Tool hub", provider_id, service),
            value=value,
            objective=text.seconds(objective) if objective is not None else "none declared",
            budget=percentage(budget if row is None else row.budget(budget)),
            p95=text.quantile(p95) if p95 is not None else "unknown",
            last_success=f"its last success was {text.duration(self.now - last)} ago"
            if last is not None
            else "it has had no success since its processes started",
            **more,
        )


def p95_of(row: HubRow, now: int) -> Quantile | None:
    """Return the 95th percentile of the requests of the last 5 min."""
    since = first_minute(now, FIVE_MINUTES)
    (p95,) = quantiles([each for minute, some in row.samples.items() if minute >= since for each in some], (0.95,))
    return p95


def first_minute(now: int, seconds: float) -> int:
    """Return the start of the minute in which a window began."""
    start = now - round(seconds * SECOND)
    return start - start % round(MINUTE * SECOND)


def slowest_of(row: HubRow | None) -> tuple[str, str] | None:
    """Return the run and span of a request among the slowest."""
    return row.exemplars[max(row.exemplars)] if row is not None and row.exemplars else None
