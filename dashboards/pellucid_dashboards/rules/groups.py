"""Groups of rules, in the order of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pellucid_dashboards.rules.durable import durable_alerts, durable_records
from pellucid_dashboards.rules.hub_groups import hub_groups
from pellucid_dashboards.rules.model import Group
from pellucid_dashboards.rules.scores import score_alerts, score_records
from pellucid_dashboards.rules.servers import server_alerts, server_records
from pellucid_dashboards.rules.stack import stack_alerts
from pellucid_dashboards.rules.upkeep import upkeep_alerts, upkeep_records
from pellucid_dashboards.rules.work import work_alerts, work_records
from pellucid_exporters.alerting.definition import Context

if TYPE_CHECKING:
    from collections.abc import Sequence


def all_groups(context: Context) -> Sequence[Group]:
    """Return the rules. Alerts are in the group of series that they read, and see values recorded just before."""
    minute = context.window(60)
    return (
        *hub_groups(context),
        Group(name="pellucid-work", rules=[*work_records(context), *work_alerts(context)]),
        Group(name="pellucid-scores", interval=minute, rules=[*score_records(context), *score_alerts(context)]),
        Group(name="pellucid-durable-runs", rules=[*durable_records(context), *durable_alerts(context)]),
        Group(name="pellucid-tool-servers", rules=[*server_records(context), *server_alerts(context)]),
        Group(name="pellucid-upkeep", rules=[*upkeep_records(), *upkeep_alerts(context)]),
        Group(name="pellucid-stack", rules=[*stack_alerts(context)]),
    )
