"""Waits for results of other processes, each of which one pass records, whatever becomes of that pass then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from pellucid.durable.store import JournalEntry
from pellucid.run.pausing.pausing import pausing_of
from pellucid.run.state import Run
from pellucid.types import JSONValue

WAITED: Final = "waited"
"""Step: a pass that failed has recorded these waits. It changes no state, which `can_repeat` tells earlier releases."""


def waits_of(run: Run, fence: int) -> Mapping[str, JSONValue]:
    """Return the journal entry of the waits that a pass has recorded, by its key; nothing if it has none."""
    pausing = pausing_of(run)
    external = pausing.resumption.external if pausing.resumption is not None else ()
    recorded = [result.result_id for result in external if result.result_id in pausing.calls.ended]
    return {f"{WAITED}:{fence}": {"step": WAITED, "can_repeat": True, "result_ids": recorded}} if recorded else {}


def expect_recorded(run: Run, journal: Iterable[JournalEntry]) -> None:
    """Let a pass not record the waits again that an earlier one has."""
    values = (cast("dict[str, Any]", entry.value) for entry in journal if entry.key.startswith(f"{WAITED}:"))
    if recorded := {result_id for value in values for result_id in value["result_ids"]}:
        pausing_of(run).recorded = recorded
