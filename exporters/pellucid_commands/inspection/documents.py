"""JSON of the commands. Fields are added, but not renamed or removed."""

from __future__ import annotations

import dataclasses
from typing import Any

from pellucid_exporters.stored.alerts import Alert
from pellucid_exporters.stored.comparison import Comparison
from pellucid_exporters.stored.hub_states import state_of
from pellucid_exporters.stored.quantiles import Quantile
from pellucid_exporters.stored.rows import HubRow


def hub_document(hub: HubRow, now: int) -> dict[str, Any]:
    """Return the JSON of a hub."""
    since = hub.in_flight_since
    return {
        "provider_id": hub.provider_id,
        "state": state_of(hub, since, now),
        "objective": hub.objective,
        "calls": hub.calls,
        "failures": hub.failures,
        "outcomes": dict(hub.outcomes),
        "p50": _seconds(hub.p50),
        "p95": _seconds(hub.p95),
        "p99": _seconds(hub.p99),
        "estimated": any(value is not None and bool(value.mark) for value in (hub.p50, hub.p95, hub.p99)),
        "delayed": hub.delayed,
        "cache": dict(hub.cache),
        "in_flight_seconds": (now - since) / 1e9 if since is not None else None,
    }


def _seconds(quantile: Quantile | None) -> float | None:
    return quantile.seconds if quantile is not None else None


def alert_document(alert: Alert) -> dict[str, Any]:
    """Return the JSON of an alert."""
    return dataclasses.asdict(alert)


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return the JSON of two runs compared: the boundaries that differ."""
    return {
        "equal": not comparison.differing,
        "caller": {name: list(values) for name, values in comparison.caller.items()},
        "stops": list(comparison.stops) if comparison.stops is not None else None,
        "boundaries": [
            {
                "name": pair.name,
                "iteration": next((number for number in pair.iterations if number is not None), None),
                "iterations": list(pair.iterations),
                "first": pair.first.sequence if pair.first is not None else None,
                "second": pair.second.sequence if pair.second is not None else None,
                "differences": [
                    {"what": difference.what, "lines": [list(line) for line in difference.lines]}
                    for difference in pair.differences
                ],
            }
            for pair in comparison.differing
        ],
    }
