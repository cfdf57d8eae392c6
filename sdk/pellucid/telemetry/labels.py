"""Bounds of labels that a model or a tool hub can make up: each value is a time series, for whoever keeps metrics."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.metrics import Counter

from pellucid import semconv
from pellucid.concurrency.forks import reset_in_child

MAX_LENGTH: Final = 128
"""Characters of a value; a longer one is cut."""

MOST: Final[Mapping[str, int]] = {
    semconv.RESPONSE_MODEL: 16,
    semconv.RPC_RESPONSE_STATUS_CODE: 64,
    semconv.ERROR_TYPE: 256,
    semconv.TOOL_NAME: 1000,
}
"""Distinct values of each in a process. A model that answers under the name in the request does not count."""

_NAMES: Final = frozenset(MOST)


class Labels:
    """Values that the labels of a meter provider have had. Thread-safe.

    Args:
        dropped: Counter of the values that `_OTHER` took the place of.
    """

    def __init__(self, dropped: Counter) -> None:
        self._dropped = dropped
        self._known: dict[str, dict[str, str]] = {name: {} for name in MOST}
        self._lock = threading.Lock()
        reset_in_child(self, _lock=threading.Lock)

    def bounded(self, labels: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return labels, with what takes the place of values beyond the bounds."""
        changed: dict[str, Any] = {}
        for name in _NAMES.intersection(labels):
            value, known = labels[name], self._known[name]
            kept = known.get(value) or self._added(name, known, value, labels)
            if kept != value:
                changed[name] = kept
        return {**labels, **changed} if changed else labels

    def _added(self, name: str, known: dict[str, str], value: str, labels: Mapping[str, Any]) -> str:
        if name == semconv.RESPONSE_MODEL and value == labels.get(semconv.REQUEST_MODEL):
            return value
        cut = value[:MAX_LENGTH]
        with self._lock:
            if cut in known or len(known) < MOST[name]:
                return known.setdefault(cut, cut)
        self._dropped.add(1, {semconv.TELEMETRY_PART: "label", semconv.TELEMETRY_REASON: name})
        return semconv.OTHER
