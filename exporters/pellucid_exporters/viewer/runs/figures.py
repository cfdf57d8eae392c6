"""Figures of the runs that a search found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pellucid_exporters.stored.quantiles import percentile
from pellucid_exporters.stored.rows import FAULTS
from pellucid_exporters.stored.run_search import FoundRuns, Match

SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of some runs; quantiles are exact, of what is known of each of them.

    Attributes:
        runs: Number of runs.
        failed: Number of those that failed, timed out, were lost or interrupted.
        faulty: Number of those in which a boundary failed.
        durations, tokens, costs: p50, p95 and p99 of seconds, tokens and US dollars.
    """

    runs: int
    failed: int
    faulty: int
    durations: Sequence[float | None]
    tokens: Sequence[float | None]
    costs: Sequence[float | None]


def figures_of(found: FoundRuns) -> Figures:
    """Return the figures of what a search found."""
    matches = found.matches
    return Figures(
        runs=len(matches),
        failed=sum(match.status in FAULTS for match in matches),
        faulty=sum(bool(match.faults) for match in matches),
        durations=_quantiles([duration / 1e9 for duration in map(_duration, matches) if duration is not None]),
        tokens=_quantiles([match.tokens for match in matches if match.tokens is not None]),
        costs=_quantiles([match.cost for match in matches if match.cost is not None]),
    )


def _duration(match: Match) -> int | None:
    return match.duration


def _quantiles(values: Sequence[float]) -> list[float | None]:
    ordered = sorted(values)
    return [percentile(share, ordered) for share in SHARES]
