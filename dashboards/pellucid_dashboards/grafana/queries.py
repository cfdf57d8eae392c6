"""PromQL of the dashboards, with names from `pellucid.semconv`.

Every histogram is asked for twice: as a native one, `or` as a classic one. A server that keeps only one of them answers
with that one; of a server that keeps both, the native one is shown, and nothing is counted twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_dashboards.names import label, series
from pellucid_dashboards.promql import REFUSALS, ROUND_TRIPS, where

if TYPE_CHECKING:
    from pellucid.semconv import Metric

WINDOW: Final = "$__rate_interval"
SHOWN: Final = "$__range"
"""The whole time that the dashboard shows."""
_SECONDS: Final = {WINDOW: "($__rate_interval_ms / 1000)", SHOWN: "$__range_s"}
SERVICE: Final = 'job=~"$service"'
AGENT: Final = f'{label(semconv.AGENT_NAME)}=~"$agent"'
PROVIDER: Final = f'{label(semconv.PROVIDER_ID)}=~"$provider"'
MODEL: Final = f'{label(semconv.REQUEST_MODEL)}=~"$model"'
TOOL: Final = f'{label(semconv.TOOL_NAME)}=~"$tool"'

_KIND: Final = label(semconv.PROVIDER_KIND)
_ID: Final = label(semconv.PROVIDER_ID)
SINGLE: Final = f'{_KIND}!="combined",{_ID}!~"(gated[(])+combined[(].*"'
"""Providers that are not made of others, whose discoveries are counted one by one."""
HUB: Final = (
    f'{_KIND}!~"static|skill|combined|registry",{_ID}!~"(gated[(])+(static[)]|skill-scoped:|combined[(]|registry[)]).*"'
)
"""Providers that ask somebody else for their tools, also through a gate."""
ROUND_TRIP: Final = (HUB, *ROUND_TRIPS)
"""Discoveries for which the hub was really asked."""
REFUSED: Final = where(semconv.ERROR_TYPE, "=~", *REFUSALS)
"""Tool calls that were never made."""
MADE: Final = where(semconv.ERROR_TYPE, "!~", *REFUSALS)
"""Tool calls that were made, as the alert `ToolFailing` counts them."""


def select(name: str, *where: str) -> str:
    """Return a selector, of no labels where none are asked for."""
    return f"{name}{{{','.join(where)}}}" if where else name


def grouped(function: str, expression: str, by: tuple[str, ...]) -> str:
    """Return an aggregation `by` attributes, or labels of Prometheus' own (`job`, `le`)."""
    names = ", ".join(label(each) for each in by)
    return f"{function} by ({names}) ({expression})" if by else f"{function}({expression})"


def rate(metric: Metric, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return how fast a counter grows, per second."""
    counter = select(series(metric), *where)
    begun = f"({_new(counter, window, counter)}) / {_SECONDS[window]}"
    return grouped("sum", f"{begun} or rate({counter}[{window}])", by)


def calls(metric: Metric, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return how many measurements a histogram took, per second."""
    return _both("histogram_count", "_count", metric, where, by, window)


def total(metric: Metric, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return the sum of a histogram's measurements, per second."""
    return _both("histogram_sum", "_sum", metric, where, by, window)


def mean(metric: Metric, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return the mean of a histogram's measurements."""
    return f"{total(metric, *where, by=by, window=window)} / {calls(metric, *where, by=by, window=window)}"


def quantile(share: float, metric: Metric, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return the value that `share` of a histogram's measurements do not exceed."""
    return (
        f"(histogram_quantile({share:g}, {_native(metric, where, by, window)})"
        f" or histogram_quantile({share:g}, {_classic(metric, '_bucket', where, ('le', *by), window)}))"
    )


def distribution(metric: Metric, *where: str) -> str:
    """Return what a heat map shows: native histograms, or one series for each bucket where there are none."""
    return f"{_native(metric, where, (), WINDOW)} or on () {_classic(metric, '_bucket', where, ('le',), WINDOW)}"


def of_agents(series_of_processes: str, *on: str) -> str:
    """Return those series whose labels `on` are also those of a process with agents."""
    composed = (select(series(semconv.COMPOSE_DURATION, suffix)) for suffix in ("", "_count"))
    return f"{series_of_processes} and on ({', '.join(on)}) ({' or '.join(composed)})"


def share(part: str, whole: str) -> str:
    """Return a part of the whole: 0 where there is no part, nothing where there is no whole.

    The expressions have the same labels.
    """
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def or_none(expression: str, *attributes: str) -> str:
    """Return the expression, or a 0 that is labelled `none` where it has no series: no panel is empty."""
    zero = "vector(0)"
    for attribute in attributes:
        zero = f'label_replace({zero}, "{label(attribute)}", "none", "", "")'
    return f"{expression} or on () {zero}"


def alerts(*where: str, by: tuple[str, ...]) -> str:
    """Return the states of alerts: 1 is pending, 2 firing."""
    firing = grouped("max", select("ALERTS", *where, 'alertstate="firing"'), by)
    pending = grouped("max", select("ALERTS", *where, 'alertstate="pending"'), by)
    return f"2 * {firing} or {pending}"


def values(metric: Metric, attribute: str, *where: str) -> str:
    """Return the query of a variable: which values a label has, on native and on classic histograms."""
    if metric.kind == "histogram":
        selector = select("", f'__name__=~"{series(metric)}(_count)?"', *where)
    else:
        selector = select(series(metric), *where)
    return f"label_values({selector}, {label(attribute)})"


def _both(function: str, suffix: str, metric: Metric, where: tuple[str, ...], by: tuple[str, ...], window: str) -> str:
    native, classic = select(series(metric), *where), select(series(metric, suffix), *where)
    new_native, new_classic = (_new(each, window, native, classic) for each in (native, classic))
    from_native = f"{function}({new_native}) / {_SECONDS[window]} or {function}(rate({native}[{window}]))"
    from_classic = f"({new_classic}) / {_SECONDS[window]} or rate({classic}[{window}])"
    return f"({grouped('sum', from_native, by)} or {grouped('sum', from_classic, by)})"


def _new(name: str, window: str, *before: str) -> str:
    """Return series of processes that are not new, if these are: `rate` does not see what a series begins with.

    A histogram that changes from classic to native, or back, is not new.
    """
    unless = "".join(f" unless {each} offset {window}" for each in before)
    return f"{name}{unless} and on (job, instance) target_info offset {window}"


def _native(metric: Metric, where: tuple[str, ...], by: tuple[str, ...], window: str) -> str:
    return grouped("sum", f"rate({select(series(metric), *where)}[{window}])", by)


def _classic(metric: Metric, suffix: str, where: tuple[str, ...], by: tuple[str, ...], window: str) -> str:
    return grouped("sum", f"rate({select(series(metric, suffix), *where)}[{window}])", by)
