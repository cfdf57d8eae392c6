"""PromQL of the dashboards, with names from `pellucid.semconv`.

Every histogram is queried as a native one `or` a classic one. A server that stores only one of them responds
with that one; if it stores both, the native one is shown, and nothing is counted twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid.semconv.servers import SERVER_OPERATION_DURATION
from pellucid_dashboards.names import label, series
from pellucid_dashboards.promql import where
from pellucid_exporters.alerting.outcomes import REFUSALS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid.semconv import Metric

WINDOW: Final = "$__rate_interval"
SHOWN: Final = "$__range"
"""Time range of the dashboard."""
_SECONDS: Final = {WINDOW: "($__rate_interval_ms / 1000)", SHOWN: "$__range_s"}
SERVICE: Final = 'job=~"$service"'
AGENT: Final = f'{label(semconv.AGENT_NAME)}=~"$agent"'
PROVIDER: Final = f'{label(semconv.PROVIDER_ID)}=~"$provider"'
MODEL: Final = f'{label(semconv.REQUEST_MODEL)}=~"$model"'
TOOL: Final = f'{label(semconv.TOOL_NAME)}=~"$tool"'

OF_AGENTS: Final = (semconv.COMPOSE_DURATION, semconv.DISCOVERY_DURATION, SERVER_OPERATION_DURATION)
"""Histograms of processes with agents, of which those of other frameworks have the second one only, and of tool
servers."""

_KIND: Final = label(semconv.PROVIDER_KIND)
_ID: Final = label(semconv.PROVIDER_ID)
SINGLE: Final = f'{_KIND}!="combined",{_ID}!~"(gated[(])+combined[(].*"'
"""Providers that do not combine others, so that each discovery is counted once."""
HUB: Final = (
    f'{_KIND}!~"static|skill|combined|registry",{_ID}!~"(gated[(])+(static[)]|skill-scoped:|combined[(]|registry[)]).*"'
)
"""Providers that request their tools from a remote hub, also through a gate."""
REFUSED: Final = where(semconv.ERROR_TYPE, "=~", *REFUSALS)
"""Tool calls that were not made."""
MADE: Final = where(semconv.ERROR_TYPE, "!~", *REFUSALS)
"""Tool calls that were made, as the alert `ToolFailing` counts them."""


def select(name: str, *where: str) -> str:
    """Return a selector, without labels if no matchers are given."""
    return f"{name}{{{','.join(where)}}}" if where else name


def grouped(function: str, expression: str, by: tuple[str, ...]) -> str:
    """Return an aggregation `by` attributes, or labels of Prometheus' own (`job`, `le`)."""
    names = ", ".join(label(attribute) for attribute in by)
    return f"{function} by ({names}) ({expression})" if by else f"{function}({expression})"


def rate(metric: Metric, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return the rate of a counter per second."""
    counter = select(series(metric), *where)
    first_values = f"({_new(counter, window, counter)}) / {_SECONDS[window]}"
    return grouped("sum", f"{first_values} or rate({counter}[{window}])", by)


def calls(metric: Metric, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return the rate of a histogram's count per second."""
    return _both("histogram_count", "_count", metric, where, by, window)


def total(metric: Metric, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return the rate of a histogram's sum per second."""
    return _both("histogram_sum", "_sum", metric, where, by, window)


def mean(metric: Metric, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return the mean of a histogram's measurements."""
    return f"{total(metric, *where, by=by, window=window)} / {calls(metric, *where, by=by, window=window)}"


def quantile(share: float, metric: Metric, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Return the quantile `share` of a histogram."""
    return (
        f"(histogram_quantile({share:g}, {_native(metric, where, by, window)})"
        f" or histogram_quantile({share:g}, {_classic(metric, '_bucket', where, ('le', *by), window)}))"
    )


def distribution(metric: Metric, *where: str) -> str:
    """Return the query of a heat map: native histograms, or one series per classic bucket."""
    return f"{_native(metric, where, (), WINDOW)} or on () {_classic(metric, '_bucket', where, ('le',), WINDOW)}"


def of_agents(series_of_processes: str, *on: str) -> str:
    """Return the series whose labels `on` match a process with agents."""
    theirs = (series(metric, suffix) for metric in OF_AGENTS for suffix in ("", "_count"))
    return f"{series_of_processes} and on ({', '.join(on)}) ({' or '.join(theirs)})"


def share(part: str, whole: str) -> str:
    """Return the ratio of a part to the whole: 0 without a part, empty without a whole.

    Both expressions must have the same labels.
    """
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def or_none(expression: str, *attributes: str) -> str:
    """Return the expression, or a 0 labelled `none` if it has no series, so that no panel is empty."""
    zero = "vector(0)"
    for attribute in attributes:
        zero = f'label_replace({zero}, "{label(attribute)}", "none", "", "")'
    return f"{expression} or on () {zero}"


def alerts(*where: str, by: tuple[str, ...]) -> str:
    """Return the states of alerts: 1 is pending, 2 firing."""
    firing = grouped("max", select("ALERTS", *where, 'alertstate="firing"'), by)
    pending = grouped("max", select("ALERTS", *where, 'alertstate="pending"'), by)
    return f"2 * {firing} or {pending}"


def values(metrics: Sequence[Metric], attribute: str, *where: str) -> str:
    """Return the query of a variable: the values of a label on native and classic histograms."""
    names = "|".join(f"{series(metric)}(_count)?" for metric in metrics)
    selector = select("", f'__name__=~"{names}"', *where)
    return f"label_values({selector}, {label(attribute)})"


def _both(function: str, suffix: str, metric: Metric, where: tuple[str, ...], by: tuple[str, ...], window: str) -> str:
    native, classic = select(series(metric), *where), select(series(metric, suffix), *where)
    new_native, new_classic = (_new(name, window, native, classic) for name in (native, classic))
    from_native = f"{function}({new_native}) / {_SECONDS[window]} or {function}(rate({native}[{window}]))"
    from_classic = f"({new_classic}) / {_SECONDS[window]} or rate({classic}[{window}])"
    return f"({grouped('sum', from_native, by)} or {grouped('sum', from_classic, by)})"


def _new(name: str, window: str, *before: str) -> str:
    """Return new series of existing processes: `rate` ignores the first value of a series.

    A histogram that changes from classic to native, or back, is not new.
    """
    unless = "".join(f" unless {series_name} offset {window}" for series_name in before)
    return f"{name}{unless} and on (job, instance) target_info offset {window}"


def _native(metric: Metric, where: tuple[str, ...], by: tuple[str, ...], window: str) -> str:
    return grouped("sum", f"rate({select(series(metric), *where)}[{window}])", by)


def _classic(metric: Metric, suffix: str, where: tuple[str, ...], by: tuple[str, ...], window: str) -> str:
    return grouped("sum", f"rate({select(series(metric, suffix), *where)}[{window}])", by)
