"""Results of a run: rows of the store, spans of the processes, and their notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pellucid_commands.demo.durable.notes import Notebook
from pellucid_commands.demo.durable.trace import ProcessSpan, read_spans

if TYPE_CHECKING:
    from pellucid.durable import CallRecord, JournalEntry, RunRecord, RunStore
    from pellucid_commands.demo.durable.notes import Action, Note
    from pellucid_commands.demo.durable.options import ProcessOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Results of a run.

    Attributes:
        run: Row of the run.
        calls: Rows of its calls, by tool.
        journal: Its journal.
        notes: Notes of all processes.
        spans: Spans of all processes.
        is_delivered: Whether the collector, if there is one, has received the spans of the demo itself.
    """

    run: RunRecord
    calls: dict[str, CallRecord]
    journal: tuple[JournalEntry, ...]
    notes: list[Note]
    spans: list[ProcessSpan]
    is_delivered: bool

    def noted(self, action: Action, **facts: object) -> int:
        """Return how often an action with these facts was noted."""
        return sum(note.action == action and note.facts.items() >= facts.items() for note in self.notes)

    @property
    def killed(self) -> list[str]:
        """Names of the processes that were killed."""
        return [note.facts["process"] for note in self.notes if note.action == "kill"]

    def steps(self, step: str) -> list[dict[str, object]]:
        """Return the values of the journal's entries of one kind."""
        values = [entry.value for entry in self.journal]
        return [value for value in values if isinstance(value, dict) and value["step"] == step]


async def collect(store: RunStore, run_id: str, options: ProcessOptions, *, is_delivered: bool) -> Results:
    """Return the results of a run that has ended."""
    run = await store.run(run_id)
    assert run is not None
    return Results(
        run=run,
        calls={call.tool: call for call in await store.calls(run_id)},
        journal=await store.journal(run_id),
        notes=Notebook(options.notes, options.process).read(),
        spans=read_spans(options.spans),
        is_delivered=is_delivered,
    )
