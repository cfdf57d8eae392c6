"""Recording rules and alerts of tool servers, seen from inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid.semconv.servers import (
    SERVER_INFLIGHT_AGE,
    SERVER_OBJECTIVE,
    SERVER_OPERATION_DURATION,
    SERVER_OVER_OBJECTIVE,
)
from pellucid_dashboards.names import label
from pellucid_dashboards.promql import JOB, OWN_FAILURES, REQUESTS, by, number
from pellucid_dashboards.rules import words
from pellucid_dashboards.rules.model import Alert, Record, alert
from pellucid_dashboards.rules.queries import mostly, ratio, select, summed, total
from pellucid_exporters.alerting import servers
from pellucid_exporters.alerting.definition import Context, Words

if TYPE_CHECKING:
    from collections.abc import Iterator

REQUESTS_10M: Final = "pellucid:mcp_server_requests:increase10m"
LATE_10M: Final = "pellucid:mcp_server_over_objective:increase10m"

_NAME: Final = label(semconv.MCP_SERVER_NAME)
_SERVER: Final = by(semconv.MCP_SERVER_NAME)
_SUBJECT: Final = by(semconv.MCP_SERVER_NAME, semconv.MCP_METHOD_NAME, semconv.TOOL_NAME)
_SAYS: Final = f"Tool server {words.value_of(_NAME)} ({words.value_of(JOB)})"
_WORK: Final = f"{words.value_of(label(semconv.MCP_METHOD_NAME))} {words.value_of(label(semconv.TOOL_NAME))}"
_DASHBOARD: Final = words.dashboard("pellucid-tool-servers", server=_NAME)
_OBJECTIVE: Final = words.objective_of(select(SERVER_OBJECTIVE), (JOB, _NAME))


def server_records(context: Context) -> Iterator[Record]:
    """Yield the series that the alerts read, of 10 min: requests by method, tool and error, and late ones."""
    ten = context.window(600)
    kinds = by(semconv.MCP_SERVER_NAME, semconv.MCP_METHOD_NAME, semconv.TOOL_NAME, semconv.ERROR_TYPE)
    yield Record(name=REQUESTS_10M, expression=total(SERVER_OPERATION_DURATION, REQUESTS, window=ten, labels=kinds))
    yield Record(name=LATE_10M, expression=total(SERVER_OVER_OBJECTIVE, window=ten, labels=_SERVER))


def server_alerts(context: Context) -> Iterator[Alert]:
    """Yield the alerts."""
    thresholds = context.thresholds
    requests = summed(REQUESTS_10M, _SERVER)
    yield alert(
        servers.slow(context, Words(subject=_SAYS, value=words.SHARE, objective=_OBJECTIVE)),
        expression=f"""
{ratio(LATE_10M, requests, _SERVER)}
> {number(thresholds.server_slow)}
and on ({_SERVER}) {requests} >= {number(thresholds.server_slow_min)}
""",
        dashboard=_DASHBOARD,
    )
    yield alert(
        servers.failing(context, Words(subject=_SAYS, value=words.SHARE)),
        expression=mostly(
            REQUESTS_10M,
            _SERVER,
            [OWN_FAILURES],
            [],
            above=thresholds.server_failing,
            least=thresholds.server_failing_min,
        ),
        dashboard=_DASHBOARD,
    )
    age = f"max by ({_SUBJECT}) ({select(SERVER_INFLIGHT_AGE)})"
    limit = f"max by ({_SERVER}) ({select(SERVER_OBJECTIVE)}) * {number(thresholds.server_hanging_objectives)}"
    yield alert(
        servers.hanging(context, Words(subject=f"{_SAYS}, {_WORK},", value=words.DURATION, objective=_OBJECTIVE)),
        expression=f"""
{age} > {number(thresholds.server_hanging_after)}
unless on ({_SERVER}, {label(semconv.MCP_METHOD_NAME)}, {label(semconv.TOOL_NAME)}) (
  {age} <= on ({_SERVER}) group_left {limit}
)
""",
        dashboard=_DASHBOARD,
    )
