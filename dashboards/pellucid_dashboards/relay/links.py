"""Links of a runbook's page to where the alert's series, traces, dashboard and silences are."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from pellucid import semconv
from pellucid_dashboards.names import label
from pellucid_dashboards.promql import ALERTS, JOB
from pellucid_dashboards.rules.groups import all_groups
from pellucid_dashboards.rules.model import Alert
from pellucid_exporters.alerting.definition import Context

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPERATIONS: Final = (
    (label(semconv.TOOL_NAME), semconv.EXECUTE_TOOL),
    (label(semconv.PROVIDER_ID), semconv.DISCOVER_TOOLS),
    (label(semconv.AGENT_NAME), semconv.INVOKE_AGENT),
    (label(semconv.REQUEST_MODEL), semconv.CHAT),
)
"""Subject of an alert by its most specific label, and the operation of its spans."""

_LABEL: Final = re.compile(r"\{\{ \$labels\.(\w+) \| urlquery \}\}")
_MOMENTARY: Final = frozenset({"severity", "trace_id"})
"""Labels that another alert on the same subject may have otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Base URLs that browsers reach; `traces` is that of Jaeger."""

    prometheus: str = "http://localhost:9090"
    alertmanager: str = "http://localhost:9093"
    traces: str = "http://localhost:16686"
    grafana: str = "http://localhost:3000"

    def links(self, name: str, labels: Mapping[str, str]) -> dict[str, str]:
        """Return links for an alert with these labels, by their text; for one without labels there are fewer."""
        known = {key: value for key, value in labels.items() if value and key not in _MOMENTARY}
        matchers = ",".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in _named(name, known))
        silence = quote(f"{{{matchers}}}", safe="")
        links = {
            "Alert in Prometheus": self.query(f"{ALERTS}{{{matchers}}}"),
            "Silence": f"{self.alertmanager.rstrip('/')}/#/silences/new?filter={silence}",
        }
        if (dashboard := _dashboards().get(name)) is not None:
            filled = _LABEL.sub(lambda found: quote(labels.get(found[1], ""), safe=""), dashboard)
            links["Dashboard"] = f"{self.grafana.rstrip('/')}{filled}"
        if service := known.get(JOB, "").rpartition("/")[2]:
            search = {"service": service, "lookback": "1h", "limit": "20", **_operation(known)}
            links["Traces"] = f"{self.traces.rstrip('/')}/search?{urlencode(search)}"
        return links

    def query(self, expression: str) -> str:
        """Return the address of a query in Prometheus, as a graph of the last hour."""
        parameters = {"g0.expr": expression, "g0.tab": "0", "g0.range_input": "1h"}
        return f"{self.prometheus.rstrip('/')}/graph?{urlencode(parameters)}"


def _named(name: str, labels: Mapping[str, str]) -> list[tuple[str, str]]:
    return [("alertname", name), *((key, value) for key, value in labels.items() if key != "alertname")]


def _operation(labels: Mapping[str, str]) -> dict[str, str]:
    for key, operation in _OPERATIONS:
        if key in labels:
            return {"operation": f"{operation} {labels[key]}"}
    return {}


@cache
def _dashboards() -> Mapping[str, str]:
    """Return the path of each alert's dashboard below Grafana's address, with templates of labels."""
    rules = [rule for group in all_groups(Context()) for rule in group.rules]
    return {rule.name: rule.dashboard for rule in rules if isinstance(rule, Alert)}
