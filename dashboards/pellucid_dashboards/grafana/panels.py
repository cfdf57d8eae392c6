"""Panels in a common style: a short title, a question as description, a unit, and queries."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboard_builders
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from pellucid_dashboards.grafana.queries import WINDOW, quantile
from pellucid_dashboards.grafana.variables import PROMETHEUS
from pellucid_dashboards.names import label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pellucid.semconv import Metric

Panel: TypeAlias = heatmap.Panel | stat.Panel | statetimeline.Panel | table.Panel | timeseries.Panel
AnyPanel = TypeVar("AnyPanel", heatmap.Panel, stat.Panel, statetimeline.Panel, table.Panel, timeseries.Panel)

OBJECTIVE: Final = "objective"
"""Legend prefix of series that are drawn as a threshold."""

SHARES: Final = (0.5, 0.95, 0.99)
WITH_EXEMPLARS: Final = 0.95
"""Percentile whose query requests exemplars, which are the same for all percentiles of a histogram."""

GREEN: Final = "green"
ORANGE: Final = "orange"
RED: Final = "red"
STEP: Final = "1m"
"""Shortest interval of rates: SDKs export metrics once a minute, and `$__rate_interval` is four intervals."""
ALERT_STATES: Final = {0: ("quiet", GREEN), 1: ("pending", ORANGE), 2: ("firing", RED)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Query of a panel.

    Attributes:
        legend: Legend with `{{label}}`; in a table, the name of the column.
        exemplar: Also show exemplars.
    """

    expr: str
    legend: str
    exemplar: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of numbers in a table.

    Attributes:
        red: Threshold from which a cell is red.
        texts: Text and colour for each value of a state, which comes before the names of rows.
        links: Links of its cells.
    """

    name: str
    expr: str
    unit: str
    red: float | None = None
    decimals: int | None = None
    texts: Mapping[int, tuple[str, str]] | None = None
    links: Sequence[dict[str, object]] = ()


def as_legend(attribute: str) -> str:
    """Return an attribute as a legend template."""
    return f"{{{{{label(attribute)}}}}}"


def percentiles(metric: Metric, *where: str, by: tuple[str, ...] = (), shares: Sequence[float] = SHARES) -> list[Query]:
    """Return a query for each percentile of a histogram, by attributes; exemplars come with the 95th."""
    legend = "".join(f"{as_legend(each)} " for each in by)
    return [
        Query(
            expr=quantile(each, metric, *where, by=by),
            legend=f"{legend}p{100 * each:g}",
            exemplar=each == WITH_EXEMPLARS,
        )
        for each in shares
    ]


def lines(title: str, question: str, unit: str, *queries: Query, stacked: bool = False) -> timeseries.Panel:
    """Return a time series panel; series whose legend starts with `objective` are dashed red lines."""
    panel = timeseries.Panel().min(0).line_width(1).show_points(common.VisibilityMode.AUTO)
    panel.fill_opacity(30 if stacked else 5).span_nulls(False)
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL).group("A"))
    panel.legend(_legend()).tooltip(_tooltip())
    dashes = common.LineStyle(fill="dash", dash=[10, 10])
    panel.override_by_regexp(
        f"/^{OBJECTIVE}/",
        [
            DynamicConfigValue("color", {"mode": "fixed", "fixedColor": RED}),
            DynamicConfigValue("custom.lineStyle", dashes),
            DynamicConfigValue("custom.lineWidth", 2),
            DynamicConfigValue("custom.fillOpacity", 0),
            DynamicConfigValue("custom.stacking", {"mode": "none", "group": "B"}),
        ],
    )
    return _asked(panel, title, question, unit, queries)


def tiles(title: str, question: str, columns: Sequence[Column], links: Mapping[str, dict[str, object]]) -> stat.Panel:
    """Return one tile per number, red from its own threshold, with a link to details."""
    panel = stat.Panel().color_mode(common.BigValueColorMode.BACKGROUND).graph_mode(common.BigValueGraphMode.AREA)
    panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"])).no_value("-")
    panel.text_mode(common.BigValueTextMode.VALUE_AND_NAME).thresholds(_thresholds(None))
    for column in columns:
        properties = _look(column)
        if column.name in links:
            properties.append(DynamicConfigValue("links", [links[column.name]]))
        panel.override_by_name(column.name, properties)
    queries = [Query(expr=column.expr, legend=column.name) for column in columns]
    return _asked(panel, title, question, "none", queries)


def rows(
    title: str,
    question: str,
    key: tuple[str, str],
    columns: Sequence[Column],
    links: Sequence[dict[str, object]],
    *,
    labels: Mapping[str, str] = MappingProxyType({}),
    sort: Sequence[str] = (),
) -> table.Panel:
    """Return a table with one row per value of a label, at the current time.

    Args:
        title: Its title.
        question: That it answers.
        key: The attribute, and the name of its column.
        columns: Of numbers.
        links: Links of the cells with the `key`.
        labels: Names of columns of other labels that a query has, by label.
        sort: Names of columns by which rows are sorted, largest first.
    """
    attribute, named = key
    panel = table.Panel().show_header(True).cell_height(common.TableCellHeight.SM)
    panel.cell_options(common.TableAutoCellOptions())
    renamed: dict[str, str] = {}
    for number, column in enumerate(columns):
        if column.texts is None:
            renamed |= {label(attribute): named, **labels}
        query = _query(Query(expr=column.expr, legend=column.name), number)
        panel.with_target(query.instant().format(PromQueryFormat.TABLE))
        renamed[f"Value #{_ref(number)}" if len(columns) > 1 else "Value"] = column.name
        panel.override_by_name(column.name, _look(column, cell="color-text"))
    panel.override_by_name(named, [DynamicConfigValue("links", list(links))])
    if sort:
        panel.sort_by([common_builders.TableSortByFieldState().display_name(name).desc(True) for name in sort])
    panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    order = {name: position for position, name in enumerate(renamed)}
    organize = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": renamed}
    panel.with_transformation(DataTransformerConfig(id_val="organize", options=organize))
    return _asked(panel, title, question, "none", ())


def heat(title: str, question: str, unit: str, expr: str) -> heatmap.Panel:
    """Return a heat map of a native or classic histogram, with exemplars."""
    colors = (
        heatmap.HeatmapColorOptions()
        .mode(HeatmapColorMode.SCHEME)
        .scale(HeatmapColorScale.EXPONENTIAL)
        .scheme("Oranges")
        .fill("dark-orange")
        .exponent(0.5)
        .steps(64)
        .reverse(False)
    )
    panel = heatmap.Panel().color(colors).calculate(False).cell_gap(1)
    panel.y_axis(heatmap.YAxisConfig().unit(unit).axis_placement(common.AxisPlacement.LEFT))
    panel.exemplars_color("rgba(255,0,255,0.7)").show_legend()
    query = _query(Query(expr=expr, legend="{{le}}", exemplar=True), 0).range().format(PromQueryFormat.HEATMAP)
    return _asked(panel.with_target(query.interval(STEP)), title, question, unit, ())


def states(title: str, question: str, texts: Mapping[int, tuple[str, str]], *queries: Query) -> statetimeline.Panel:
    """Return a state timeline; `texts` map each value to its text and colour."""
    panel = statetimeline.Panel().mappings([_shown(texts)]).merge_values(True)
    panel.show_value(common.VisibilityMode.NEVER).row_height(0.8).fill_opacity(80)
    panel.color_scheme(dashboard_builders.FieldColor().mode(FieldColorModeId.THRESHOLDS)).thresholds(_thresholds(None))
    panel.legend(_legend()).tooltip(_tooltip())
    return _asked(panel, title, question, "none", queries)


def _asked(panel: AnyPanel, title: str, question: str, unit: str, queries: Sequence[Query]) -> AnyPanel:
    has_rates = any(WINDOW in query.expr for query in queries)
    for number, query in enumerate(queries):
        target = _query(query, number).range()
        panel.with_target(target.interval(STEP) if has_rates else target)
    return panel.title(title).description(question).unit(unit).datasource(PROMETHEUS)


def _query(query: Query, number: int) -> prometheus.Dataquery:
    made = prometheus.Dataquery().ref_id(_ref(number)).expr(query.expr).legend_format(query.legend)
    return made.datasource(PROMETHEUS).exemplar(query.exemplar)


def _ref(number: int) -> str:
    return "ABCDEFGHIJKLMNOP"[number]


def _look(column: Column, cell: str | None = None) -> list[DynamicConfigValue]:
    """Return the unit and the colours of a column's numbers."""
    look = [DynamicConfigValue("unit", column.unit), DynamicConfigValue("thresholds", _thresholds(column.red).build())]
    if column.texts is not None:
        look.append(DynamicConfigValue("mappings", [_shown(column.texts)]))
        look.append(DynamicConfigValue("custom.cellOptions", {"type": "color-background"}))
    if column.links:
        look.append(DynamicConfigValue("links", list(column.links)))
    if column.decimals is not None:
        look.append(DynamicConfigValue("decimals", column.decimals))
    if cell is not None and column.red is not None:
        look.append(DynamicConfigValue("custom.cellOptions", {"type": cell}))
    return look


def _shown(texts: Mapping[int, tuple[str, str]]) -> ValueMap:
    shown = {str(value): ValueMappingResult(text=text, color=color) for value, (text, color) in texts.items()}
    return ValueMap(options=shown)


def _thresholds(red: float | None) -> dashboard_builders.ThresholdsConfig:
    steps = [Threshold(color=GREEN)]
    if red is not None:
        steps.append(Threshold(value=red, color=RED))
    return dashboard_builders.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _legend() -> common_builders.VizLegendOptions:
    return (
        common_builders.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([])
    )


def _tooltip() -> common_builders.VizTooltipOptions:
    return common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
