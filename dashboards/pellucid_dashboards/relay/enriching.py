"""What becomes of alerts: a trace is added, and they go on to every Alertmanager; or they are shown."""

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
"""As Prometheus posts them and Alertmanager's webhooks have them: with `labels` and `annotations`."""

LOOKUP: Final = 3.0
"""Seconds that all lookups for one request may take; after that alerts go on as they came."""
DELIVERY: Final = 5.0

_log: Final = logging.getLogger(__name__)


class DeliveryError(PellucidError):
    """No Alertmanager took the alerts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """Adds `trace_id` and `trace_url` to the annotations of alerts.

    Attributes:
        prometheus: Base URL of the Prometheus that has the exemplars.
        alertmanagers: Base URLs; each gets all alerts.
        traces: Base URL of Jaeger as people's browsers reach it.
    """

    prometheus: str
    alertmanagers: Sequence[str]
    traces: str

    def pass_on(self, alerts: Sequence[Alert]) -> None:
        """Add traces, and deliver.

        Raises:
            DeliveryError: no Alertmanager took them; Prometheus will send them again.
        """
        self.add_traces(alerts)
        failures = [failure for url in self.alertmanagers if (failure := _deliver(url, alerts))]
        for failure in failures:
            _log.warning("%s", failure)
        if len(failures) == len(self.alertmanagers):
            raise DeliveryError("; ".join(failures))

    def add_traces(self, alerts: Sequence[Alert]) -> None:
        """Add the trace that shows best what each alert is about, where Prometheus has one and it is found in time."""
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


def describe(notification: Mapping[str, Any]) -> str:
    """Return what a webhook of Alertmanager says, as lines for a terminal."""
    lines = []
    for alert in notification["alerts"]:
        labels, annotations = alert["labels"], alert["annotations"]
        told = annotations.get("summary") or labels.get("alertname", "")
        lines.append(f"[{alert['status']}] {labels.get('severity', 'alert')} {labels.get('alertname', '')}: {told}")
        links = (("trace", "trace_url"), ("dashboard", "dashboard_url"), ("runbook", "runbook_url"))
        lines += [f"    {name}: {annotations[key]}" for name, key in links if annotations.get(key)]
    return "\n".join(clean(line) for line in lines)


def _deliver(alertmanager: str, alerts: Sequence[Alert]) -> str | None:
    """Return what went wrong."""
    url = f"{alertmanager.rstrip('/')}/api/v2/alerts"
    request = Request(url, json.dumps(alerts).encode(), {"Content-Type": "application/json"})  # noqa: S310  (likewise)
    try:
        with urlopen(request, timeout=DELIVERY):  # noqa: S310  (checked to be HTTP by the command)
            return None
    except (URLError, OSError, HTTPException) as error:
        return f"posting alerts to {url} failed: {error}"
