"""Groups of the rules of tool hubs: by window, since each is evaluated as often as it has to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pellucid_dashboards.rules import hubs
from pellucid_dashboards.rules.discovery import (
    budget_records,
    latency_records,
    request_records,
    state_records,
    wait_records,
    window_records,
)
from pellucid_dashboards.rules.model import Group
from pellucid_exporters.alerting.definition import Context
from pellucid_exporters.alerting.hubs import BURNS

if TYPE_CHECKING:
    from collections.abc import Iterator


def hub_groups(context: Context) -> Iterator[Group]:
    """Yield the groups.

    Groups do not wait for each other: what one of them reads of another is an interval old at most. Intervals divide
    5 min, so that windows of which longer ones are made follow each other without gaps.
    """
    fast, slow, steady = BURNS
    half_minute, minute, two = (context.window(seconds) for seconds in (30, 60, 120))
    yield Group(
        name="pellucid-hub-requests",
        interval=half_minute,
        rules=[*request_records(context), hubs.failing(context)],
    )
    yield Group(
        name="pellucid-hub-windows",
        interval=half_minute,
        rules=[*window_records(context, "30m", "1h"), hubs.slow(context, fast)],
    )
    yield Group(
        name="pellucid-hub-long-windows",
        interval=two,
        rules=[
            *window_records(context, "6h", "1d", "3d", "7d"),
            *budget_records(context),
            *(hubs.slow(context, burn) for burn in (slow, steady)),
            hubs.slow_streak(context),
        ],
    )
    yield Group(
        name="pellucid-hub-state",
        rules=[*state_records(context), hubs.silent(context), hubs.down(context), hubs.circuit_open(context)],
    )
    yield Group(name="pellucid-hub-latency", interval=minute, rules=[*latency_records(context)])
    yield Group(
        name="pellucid-hub-waits",
        interval=minute,
        rules=[*wait_records(context), hubs.cache_misses(context)],
    )
    changes = [hubs.catalog_changing(context), hubs.definitions_changed(context)]
    yield Group(name="pellucid-hub-catalogs", interval=two, rules=changes)
