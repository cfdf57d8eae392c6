"""Bounds of labels that a model or a tool hub can make up: each value is a time series in a metrics backend."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Final, Protocol

from opentelemetry.metrics import Counter

from pellucid import semconv
from pellucid.concurrency.forks import reset_in_child

MAX_LENGTH: Final = 128
"""Characters of a value; a longer one is cut."""

MOST: Final[Mapping[str, int]] = {
    semconv.AGENT_VERSION: 64,
    semconv.RESPONSE_MODEL: 16,
    semconv.RPC_RESPONSE_STATUS_CODE: 64,
    semconv.ERROR_TYPE: 256,
    semconv.TOOL_NAME: 1000,
    "pellucid.budget.name": 1000,  # of `semconv.budgets`, which a program without budgets does not load
    "gen_ai.evaluation.name": 64,  # of `semconv.scores`
}
"""Distinct values of each in a process. A model that answers under the name in the request does not count."""


class Values(Protocol):
    """Values that a label may have."""

    def get(self, value: str, /) -> str | None:
        """Return what was added for a value."""

    def add(self, value: str) -> str | None:
        """Return the value, or `None` if it is beyond the bound. Not thread-safe."""


class FirstValues(dict[str, str]):
    """The first values that a label has. Args: most: their number."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def add(self, value: str) -> str | None:
        """Add a value."""
        return self.setdefault(value, value) if value in self or len(self) < self._most else None


class Labels:
    """Values that the labels of a meter provider have had. Thread-safe.

    Args:
        dropped: Counter of the values that `_OTHER` took the place of.
    """

    def __init__(self, dropped: Counter) -> None:
        self._dropped = dropped
        self._values: dict[str, Values] = {name: FirstValues(most) for name, most in MOST.items()}
        self._lock = threading.Lock()
        reset_in_child(self, _lock=threading.Lock)

    def bound(self, name: str, values: Values) -> None:
        """Replace the bound of a label, before its first value."""
        self._values = {**self._values, name: values}

    def bounded(self, labels: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return labels, with what takes the place of values beyond the bounds."""
        changed: dict[str, Any] = {}
        for name in self._values.keys() & labels.keys():
            value, values = labels[name], self._values[name]
            kept = values.get(value) or self._added(name, values, value, labels)
            if kept != value:
                changed[name] = kept
        return {**labels, **changed} if changed else labels

    def _added(self, name: str, values: Values, value: str, labels: Mapping[str, Any]) -> str:
        if name == semconv.RESPONSE_MODEL and value == labels.get(semconv.REQUEST_MODEL):
            return value
        with self._lock:
            added = values.add(value[:MAX_LENGTH])
        if added is None:
            self._dropped.add(1, {semconv.TELEMETRY_PART: "label", semconv.TELEMETRY_REASON: name})
            return semconv.OTHER
        return added
