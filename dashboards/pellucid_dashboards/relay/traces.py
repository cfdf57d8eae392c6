"""Selection of a trace for an alert, from the exemplars of the series behind it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from pellucid import semconv
from pellucid.errors import PellucidError
from pellucid.semconv.scores import EVALUATION_NAME, EVALUATION_SCORE
from pellucid.semconv.servers import SERVER_OPERATION_DURATION
from pellucid_dashboards.names import label, series

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOOKBACK: Final = 3600.0
"""Seconds for which an exemplar is recent."""

SUBJECTS: Final = (
    (label(EVALUATION_NAME), EVALUATION_SCORE),
    (label(semconv.MCP_SERVER_NAME), SERVER_OPERATION_DURATION),
    (label(semconv.TOOL_NAME), semconv.TOOL_DURATION),
    (label(semconv.PROVIDER_ID), semconv.HUB_LISTING_DURATION),
    (label(semconv.AGENT_NAME), semconv.AGENT_DURATION),
    (label(semconv.REQUEST_MODEL), semconv.OPERATION_DURATION),
)
"""Subject of an alert by its most specific label, and the histogram whose exemplars link to its traces."""

_FAILED: Final = ("Failing", "Down", "CircuitOpen")
_SLOW: Final = ("Slow", "Silent")
_LOW: Final = "ScoreDropped"
_UNMEASURED: Final = "ScorerFailing"
"""Alert on what is in no histogram, so that no exemplar shows it."""


class TraceLookupError(PellucidError):
    """The query for exemplars failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """Measurement with a link to its trace.

    Attributes:
        value: Measured seconds, or the value of a score.
        time: Unix time.
        failed: Whether the measurement has an error.
    """

    trace_id: str
    value: float
    time: float
    failed: bool


def selector(labels: Mapping[str, str]) -> str | None:
    """Return the PromQL selector of the series whose exemplars are relevant to an alert with these labels, or None."""
    if labels.get("alertname") == _UNMEASURED:
        return None
    for name, metric in SUBJECTS:
        if labels.get(name):
            known = ("job", *map(label, metric.attributes))
            names = f"{series(metric)}|{series(metric, '_bucket')}"  # native and classic histograms
            matchers = [f"{name}={_quoted(labels[name])}" for name in known if labels.get(name)]
            return f"{{{','.join([f'__name__=~{_quoted(names)}', *matchers])}}}"
    return None


def choose(exemplars: Iterable[Exemplar], alert: str) -> Exemplar | None:
    """Return the most relevant exemplar for an alert of this name: a failure, the slowest, the worst, or the newest."""
    found = list(exemplars)
    if alert.endswith(_FAILED):
        found = [exemplar for exemplar in found if exemplar.failed] or found
    if alert.endswith(_SLOW):
        return max(found, key=lambda exemplar: (exemplar.value, exemplar.time), default=None)
    if alert == _LOW:
        return min(found, key=lambda exemplar: (exemplar.value, -exemplar.time), default=None)
    return max(found, key=lambda exemplar: exemplar.time, default=None)


def read_exemplars(prometheus: str, query: str, timeout: float) -> list[Exemplar]:
    """Return the exemplars of a selector that Prometheus stored in the last hour.

    Raises:
        TraceLookupError: no valid response within `timeout` seconds.
    """
    now = time.time()
    parameters = urlencode({"query": query, "start": f"{now - LOOKBACK:.3f}", "end": f"{now:.3f}"})
    url = f"{prometheus.rstrip('/')}/api/v1/query_exemplars"
    try:
        with urlopen(f"{url}?{parameters}", timeout=timeout) as answer:  # noqa: S310  (checked to be HTTP by the command)
            found = json.load(answer)["data"]
        return [
            Exemplar(
                trace_id=exemplar["labels"]["trace_id"],
                value=float(exemplar["value"]),
                time=float(exemplar["timestamp"]),
                failed=bool(of["seriesLabels"].get(label(semconv.ERROR_TYPE))),
            )
            for of in found
            for exemplar in of["exemplars"]
            if _is_trace_id(exemplar["labels"].get("trace_id"))
        ]
    except (URLError, OSError, HTTPException, ValueError, KeyError, TypeError) as error:
        raise TraceLookupError(f"asking {url} for exemplars failed: {error!r}") from error


def _is_trace_id(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{32}", text) is not None


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # PromQL escapes as JSON does
