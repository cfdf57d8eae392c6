"""PromQL expressions for classic and native histograms, and for counters that start above 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid_dashboards.names import series
from pellucid_dashboards.promql import INSTANCE, JOB, LE, UP, number, selector
from pellucid_exporters.alerting.definition import Context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid.semconv import Metric

NEXT: Final = "\n  or "


def select(metric: Metric, *matchers: str, suffix: str = "") -> str:
    """Return a selector of a metric's series."""
    return selector(series(metric, suffix), *matchers)


def increase(metric: Metric, *matchers: str, window: str) -> str:
    """Return the increase of each series of a counter, or of a histogram's count, within a window.

    A series that was not there a window ago began at 0, and PromQL's `increase` sees no step from there to its first
    value. Where the target was scraped already, its latest sample is what it grew by. Targets that push have no `up`: a
    process that began within the window has grown by its latest sample, also if that is its only one. A restart is a
    reset, which `increase` knows.
    """
    if metric.kind == "counter":
        return grown(select(metric, *matchers), window)
    unsure = _unsure(window)
    classic, native = select(metric, *matchers, suffix="_count"), select(metric, *matchers)
    latest = f"last_over_time({classic}[{window}]) or histogram_count(last_over_time({native}[{window}]))"
    # Prometheus may switch from one kind to the other.
    # Of what is inside `histogram_count`, Prometheus reads no buckets.
    before = f"({classic} offset {window} or histogram_count({native} offset {window}))"
    return NEXT.join([f"(({latest}) unless {before} {unsure})", observed_increase(metric, *matchers, window=window)])


def observed_increase(metric: Metric, *matchers: str, window: str) -> str:
    """Return the increase of each series of a histogram's count between the samples in a window.

    It reads a third of what `increase` reads, and does not count what a series had in its first sample.
    """
    classic, native = select(metric, *matchers, suffix="_count"), select(metric, *matchers)
    return f"increase({classic}[{window}]){NEXT}histogram_count(increase({native}[{window}]))"


def grown(counted: str, window: str) -> str:
    """Return the increase of the counters that a selector finds, as `increase` does."""
    return (
        f"(last_over_time({counted}[{window}]) unless {counted} offset {window} {_unsure(window)})\n"
        f"  or increase({counted}[{window}])"
    )


def _unsure(window: str) -> str:
    """Return what excludes series of targets that were not scraped a window ago."""
    return f"unless on ({JOB}, {INSTANCE}) ({UP} unless {UP} offset {window} == 1)"


def total(metric: Metric, *matchers: str, window: str, labels: str) -> str:
    """Return the sum of `increase` by labels."""
    return f"sum by ({labels}) (\n  {increase(metric, *matchers, window=window)}\n)"


def added(metric: Metric, *matchers: str, window: str, labels: str) -> str:
    """Return the increase of a histogram's sum within a window, summed by labels."""
    classic = f"increase({select(metric, *matchers, suffix='_sum')}[{window}])"
    native = f"histogram_sum(increase({select(metric, *matchers)}[{window}]))"
    return f"sum by ({labels}) (\n  {classic}\n  or {native}\n)"


def quantile(share: float, metric: Metric, *matchers: str, window: str, labels: str) -> str:
    """Return a quantile of a histogram by labels, from native buckets if available; empty without traffic."""
    native = f"sum by ({labels}) (rate({select(metric, *matchers)}[{window}]))"
    classic = f"sum by ({labels}, {LE}) (rate({select(metric, *matchers, suffix='_bucket')}[{window}]))"
    return (
        f"(\n  histogram_quantile({share:g}, {native})\n"
        f"  or histogram_quantile({share:g}, {classic})\n) >= 0"  # excludes NaN, the value without traffic
    )


def summed(record: str, labels: str, *matchers: str) -> str:
    """Return the sum of a recorded series by labels."""
    return f"sum by ({labels}) ({selector(record, *matchers)})"


def composed(record: str, labels: str, *, part: float, whole: float, context: Context) -> str:
    """Return the sum over a long window of what a rule recorded for the short windows that follow each other in it."""
    terms = []
    for step in range(round(whole / part)):
        ago = context.window(step * part) if step else "0s"
        offset = f" offset {ago}" if step else ""
        terms.append(f'label_replace({record}{offset}, "ago", "{ago}", "", "")')
    return f"sum by ({labels}) (\n  {NEXT.join(terms)}\n)"


def ratio(part: str, whole: str, labels: str) -> str:
    """Return a ratio: 0 without a series of the part, empty if the whole is 0."""
    return f"({part} or on ({labels}) {whole} * 0)\n/ ({whole} > 0)"


def mostly(record: str, labels: str, part: Sequence[str], whole: Sequence[str], *, above: float, least: float) -> str:
    """Return the ratio of a part to a whole by labels, where it exceeds a limit and the part is large enough."""
    of_part = summed(record, labels, *part)
    return (
        f"{ratio(of_part, summed(record, labels, *whole), labels)}\n> {number(above)}\n"
        f"and on ({labels}) {of_part} >= {number(least)}"
    )
