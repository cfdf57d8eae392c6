"""Template variables of a dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from grafana_foundation_sdk.builders.dashboard import DatasourceVariable, QueryVariable
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.dashboard import VariableHide, VariableOption, VariableRefresh, VariableSort

from pellucid import semconv
from pellucid.semconv.servers import SERVER_OPERATION_DURATION
from pellucid_dashboards.dashboard_files import SHIPPED_UIDS
from pellucid_dashboards.explore import METRICS, TRACED, TRACES
from pellucid_dashboards.grafana.queries import HUB, OF_AGENTS, SERVICE, of_agents, values

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMETHEUS: Final = DataSourceRef(type_val="prometheus", uid=f"${{{METRICS}}}")

_CLASSIC_QUERY: Final = 5  # as it is typed, instead of taken apart for Grafana's editor
_LABELS: Final = {
    "agent": ("Agent", values([semconv.AGENT_DURATION], semconv.AGENT_NAME, SERVICE)),
    "provider": ("Tool provider", values([semconv.TOOL_DURATION], semconv.PROVIDER_ID, SERVICE)),
    "model": ("Model", values([semconv.OPERATION_DURATION], semconv.REQUEST_MODEL, SERVICE)),
    "server": ("Tool server", values([SERVER_OPERATION_DURATION], semconv.MCP_SERVER_NAME, SERVICE)),
    "tool": ("Tool", values([semconv.TOOL_DURATION], semconv.TOOL_NAME, SERVICE)),
}
_HUBS: Final = (
    "Tool hub",
    values([semconv.HUB_LISTING_DURATION, semconv.DISCOVERY_DURATION], semconv.PROVIDER_ID, SERVICE, HUB),
)


def variables(names: Sequence[str]) -> list[DatasourceVariable | QueryVariable]:
    """Return the data sources, `service` and the named variables.

    The name `hub` is a `provider` limited to remote hubs; `All` includes only these. `traced` is
    hidden: links to traces need it.
    """
    service = _choice("service", "Service", values(OF_AGENTS, "job")).all_value(".*")
    sources = [_source(METRICS, "Metrics", "prometheus")]
    if TRACED in names:
        sources.append(_source(TRACES, "Traces", "jaeger"))
    return [*sources, service, *map(_variable, names)]


def _source(name: str, text: str, kind: str) -> DatasourceVariable:
    uid = SHIPPED_UIDS[kind]
    return DatasourceVariable(name).label(text).type(kind).current(VariableOption(selected=True, text=uid, value=uid))


def _variable(name: str) -> QueryVariable:
    if name == TRACED:
        return _traced()
    if name == "hub":
        return _choice("provider", *_HUBS)
    return _choice(name, *_LABELS[name]).all_value(".*")  # also series without the label


def _query(name: str, query: str) -> QueryVariable:
    return (
        QueryVariable(name)
        .datasource(PROMETHEUS)
        .query({"query": query, "qryType": _CLASSIC_QUERY, "refId": f"variable-{name}"})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def _choice(name: str, text: str, query: str) -> QueryVariable:
    everything = VariableOption(selected=True, text=["All"], value=["$__all"])
    return _query(name, query).label(text).multi(True).include_all(True).current(everything)


def _traced() -> QueryVariable:
    """Return `service.name`, as Jaeger uses it, of the first selected service.

    A scraped service says it in `target_info`; of one that pushes, Prometheus makes it the job, after a namespace.
    Whatever else is scraped may have a `target_info`, as collectors do.
    """
    scraped, every = (
        of_agents(f"target_info{{{where}}}", "job", "instance") for where in (f'{SERVICE},service_name!=""', SERVICE)
    )
    pushed = f'label_replace({every}, "service_name", "$1", "job", "(?:.*/)?(.*)")'
    query = f"group by (service_name) ({scraped}) or on () group by (service_name) ({pushed})"
    return (
        _query(TRACED, f"query_result({query})")
        .regex('/service_name="([^"]+)"/')
        .hide(VariableHide.HIDE_VARIABLE)
        .multi(False)
        .include_all(False)
    )
