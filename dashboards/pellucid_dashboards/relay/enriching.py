"""Processing of alerts: add a trace and forward them to every Alertmanager, or print them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final, TypeAlias
from urllib.error import URLError
from urllib.request import Request, urlopen

from pellucid.errors import PellucidError
from pellucid.text import clean
from pellucid_dashboards.relay.traces import TraceLookupError, choose, read_exemplars, selector

Alert: TypeAlias = MutableMapping[str, Any]
"""Alert with `labels` and `annotations`, as posted by Prometheus and by Alertmanager's webhooks."""

LOOKUP: Final = 3.0
"""Timeout in seconds of all lookups for one request; after that, alerts are forwarded unchanged."""
DELIVERY: Final = 5.0

_log: Final = logging.getLogger(__name__)


class DeliveryError(PellucidError):
    """No Alertmanager accepted the alerts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """Relay that adds `trace_id`, `trace_url` and `run_url` to the annotations of alerts.

    Attributes:
        prometheus: Base URL of the Prometheus that stores the exemplars.
        alertmanagers: Base URLs; each receives all alerts.
        traces: Base URL of Jaeger, reachable from browsers.
        viewer: Base URL of `pellucid view`, if those who get alerts have one.
    """

    prometheus: str
    alertmanagers: Sequence[str]
    traces: str
    viewer: str | None = None

    def pass_on(self, alerts: Sequence[Alert]) -> None:
        """Add traces and forward the alerts.

        Raises:
            DeliveryError: no Alertmanager accepted them; Prometheus will send them again.
        """
        self.add_traces(alerts)
        failures = [failure for url in self.alertmanagers if (failure := _deliver(url, alerts))]
        for failure in failures:
            _log.warning("%s", failure)
        if len(failures) == len(self.alertmanagers):
            raise DeliveryError("; ".join(failures))

    def add_traces(self, alerts: Sequence[Alert]) -> None:
        """Add the most relevant trace to each alert, if Prometheus returns one in time."""
        deadline = time.monotonic() + LOOKUP
        for alert in alerts:
            labels = alert.get("labels") or {}
            annotations = alert.setdefault("annotations", {})
            query = selector(labels)
            if query is None or annotations.get("trace_url"):
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                _log.warning("no time left to look for the traces of further alerts")
                return
            try:
                found = choose(read_exemplars(self.prometheus, query, left), str(labels.get("alertname", "")))
            except TraceLookupError as error:
                _log.warning("%s", error)
                return
            if found is not None:
                annotations["trace_id"] = found.trace_id
                annotations["trace_url"] = f"{self.traces.rstrip('/')}/trace/{found.trace_id}"
                if self.viewer is not None:
                    annotations["run_url"] = f"{self.viewer.rstrip('/')}/traces/{found.trace_id}"


def describe(notification: Mapping[str, Any]) -> str:
    """Format a webhook notification of Alertmanager as lines for a terminal."""
    lines = []
    for alert in notification["alerts"]:
        labels, annotations = alert["labels"], alert["annotations"]
        summary = annotations.get("summary") or labels.get("alertname", "")
        lines.append(f"[{alert['status']}] {labels.get('severity', 'alert')} {labels.get('alertname', '')}: {summary}")
        links = tuple((name, f"{name}_url") for name in ("trace", "run", "dashboard", "runbook"))
        lines += [f"    {name}: {annotations[key]}" for name, key in links if annotations.get(key)]
    return "\n".join(clean(line) for line in lines)


def _deliver(alertmanager: str, alerts: Sequence[Alert]) -> str | None:
    """Post the alerts to one Alertmanager; return the problem, or None."""
    url = f"{alertmanager.rstrip('/')}/api/v2/alerts"
    request = Request(url, json.dumps(alerts).encode(), {"Content-Type": "application/json"})  # noqa: S310  (likewise)
    try:
        with urlopen(request, timeout=DELIVERY):  # noqa: S310  (checked to be HTTP by the command)
            return None
    except (URLError, OSError, HTTPException) as error:
        return f"posting alerts to {url} failed: {error}"
