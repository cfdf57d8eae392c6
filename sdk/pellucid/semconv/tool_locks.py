"""Names of what runs with a lock file emit; a program without one does not load them."""

from __future__ import annotations

from typing import Final

from pellucid.semconv.metrics import Metric
from pellucid.semconv.names import PROVIDER_ID

CATALOG_REDEFINED: Final = "pellucid.catalog.redefined"
TOOL_CHANGE: Final = "pellucid.tool.change"

DEFINITION_CHANGES: Final = Metric(
    "counter",
    "{tool}",
    "pellucid.tool.definition.changes",
    "Tools that differed from the lock file or were not in it, each once in a run.",
    (PROVIDER_ID, TOOL_CHANGE),
)

TOOL_LOCK_METRICS: Final = (DEFINITION_CHANGES,)
"""Instruments of runs with a lock file."""
