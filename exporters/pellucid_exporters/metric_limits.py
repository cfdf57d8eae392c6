"""Bounds of the time series that a process makes, and the views of OpenTelemetry's SDK that keep them."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics.view import View

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid.semconv.budgets import BUDGET_NAME
from pellucid.semconv.servers import ALL_METRICS
from pellucid.telemetry.labels import FirstValues
from pellucid_exporters.top_values import TopValues

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pellucid.telemetry.labels import Labels, Values

_HAS_LIMITS: Final = "aggregation_cardinality_limit" in inspect.signature(View).parameters
"""From 1.45 on, OpenTelemetry's SDK limits series."""

_LABELS: Final = frozenset(label for metric in ALL_METRICS for label in metric.attributes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricLimits:
    """Bounds of the series of Pellucid's instruments in one process.

    Attributes:
        series: Label sets of each instrument. Further ones share one series, with the label
            `otel.metric.overflow`. OpenTelemetry's SDK before 1.45 has no limit.
        tools: Tools with series of their own: the first `2000` that are called, or `"top:200"` for the 200 that are
            called most. Others have the name `_OTHER`, and are counted in `pellucid.telemetry.dropped`.
        agents: The same for agents; `None` is no bound.
        budgets: The same for budgets that runs share.
        without: Labels that no series has, such as `{"gen_ai.agent.name"}`.

    Raises:
        ConfigError: a number is not positive, a bound is neither a number nor `top:` and a number, or no instrument
            has such a label.
    """

    series: int = 10_000
    tools: int | str = 2000
    agents: int | str | None = None
    budgets: int | str = 1000
    without: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.series < 1:
            raise ConfigError(f"MetricLimits(series={self.series!r}): must be a number above 0")
        _parse("tools", self.tools)
        _parse("budgets", self.budgets)
        if self.agents is not None:
            _parse("agents", self.agents)
        if isinstance(self.without, str):
            raise ConfigError(
                f"MetricLimits(without={self.without!r}): give a collection, such as {{{self.without!r}}}"
            )
        if unknown := sorted(set(self.without) - _LABELS):
            raise ConfigError(
                f"MetricLimits(without=...): no instrument has the label {unknown[0]!r}; "
                f"the labels are {', '.join(sorted(_LABELS))}"
            )

    def views(self) -> Iterator[View]:
        """Yield a view for each instrument."""
        removed = set(self.without)
        for metric in (*ALL_METRICS, *semconv.USAGE_COUNTERS.values(), *semconv.CALL_TOKENS.values()):
            options: dict[str, Any] = {"aggregation_cardinality_limit": self.series} if _HAS_LIMITS else {}
            if removed.intersection(metric.attributes):
                options["attribute_keys"] = set(metric.attributes) - removed
            if options:
                for name in {metric.name, semconv.RENAMED.get(metric.name, metric.name)}:
                    yield View(instrument_name=name, meter_name=semconv.SCOPE, **options)

    def apply(self, labels: Labels) -> None:
        """Bound the labels of a meter provider."""
        labels.bound(semconv.TOOL_NAME, _values("tools", self.tools))
        labels.bound(BUDGET_NAME, _values("budgets", self.budgets))
        if self.agents is not None:
            labels.bound(semconv.AGENT_NAME, _values("agents", self.agents))


def _values(option: str, bound: int | str) -> Values:
    most, is_top = _parse(option, bound)
    return TopValues(most) if is_top else FirstValues(most)


def _parse(option: str, bound: int | str) -> tuple[int, bool]:
    """Return the number of values, and whether they are the most frequent ones."""
    if isinstance(bound, int) and not isinstance(bound, bool) and bound > 0:
        return bound, False
    found = re.fullmatch(r"top:([1-9][0-9]*)", bound) if isinstance(bound, str) else None
    if found is None:
        raise ConfigError(
            f"MetricLimits({option}={bound!r}): use a number above 0, or 'top:' and one, such as 'top:200'"
        )
    return int(found[1]), True
