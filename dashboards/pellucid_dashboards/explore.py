"""Addresses of searches in Grafana's Explore, for traces in Jaeger or Tempo and for logs in Loki."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

METRICS: Final = "datasource"
"""Variable with the data source of metrics."""
TRACES: Final = "traces"
"""Variable with the data source of traces."""
LOGS: Final = "logs"
"""Variable with the data source of logs."""
TRACED: Final = "traced"
"""Variable with the name of the service in the data source of traces."""
TRACE: Final = "trace"
"""Variable with the id of the trace whose logs are searched for, as a regular expression."""
ANY: Final = ".+"
"""That of any trace."""

EXPLORE: Final = "/explore?"
_PANES: Final = "&panes="
_LIMIT: Final = 50


def in_jaeger(operation: str) -> dict[str, Any]:
    """Return the query of Jaeger's spans with this name; Grafana fills in `${...}`."""
    return {"refId": "A", "queryType": "search", "service": f"${{{TRACED}}}", "operation": operation, "limit": _LIMIT}


def in_tempo(operation: str) -> dict[str, Any]:
    """Return the query of Tempo's spans with this name."""
    query = f'{{resource.service.name="${{{TRACED}}}" && name="{operation}"}}'
    return {"refId": "A", "queryType": "traceql", "query": query, "limit": _LIMIT, "filters": []}


def in_loki() -> dict[str, Any]:
    """Return the query of the logs of a trace, as Loki keeps what it gets by OTLP."""
    return {"refId": "A", "queryType": "range", "expr": f'{{service_name="${{{TRACED}}}"}} | trace_id=~"${{{TRACE}}}"'}


def explore(variable: str, query: Mapping[str, Any]) -> str:
    """Return the address of a query to the data source of a variable, within the dashboard's time range."""
    shown = {"from": "${__from}", "to": "${__to}"}
    panes = {variable: {"datasource": f"${{{variable}}}", "queries": [query], "range": shown}}
    text = quote(json.dumps(panes, separators=(",", ":")), safe="${}")
    return f"{EXPLORE}schemaVersion=1&orgId=${{__org.id}}{_PANES}{text}"


def query_of(address: str) -> dict[str, Any]:
    """Return the query of an address."""
    [pane] = json.loads(unquote(address.partition(_PANES)[2])).values()
    query: dict[str, Any] = pane["queries"][0]
    return query
