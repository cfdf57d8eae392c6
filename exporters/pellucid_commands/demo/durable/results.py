"""Results of a run: rows of the store, spans and metrics of the processes, and their notes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from pellucid_commands.demo.durable.notes import Notebook
from pellucid_commands.demo.durable.trace import ProcessSpan, read_spans
from pellucid_exporters.prometheus.naming import to_labels, to_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pellucid.durable import CallRecord, JournalEntry, RunRecord, RunStore
    from pellucid.semconv import Metric
    from pellucid_commands.demo.durable.notes import Action, Note
    from pellucid_commands.demo.durable.options import ProcessOptions


Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels of a series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Results of a run.

    Attributes:
        run: Row of the run.
        calls: Rows of its calls, by tool.
        journal: Its journal.
        notes: Notes of all processes.
        spans: Spans of all processes.
        samples: Samples of the metrics of all processes, added up, by name and labels.
        is_delivered: Whether the collector, if there is one, has received the spans of the demo itself.
    """

    run: RunRecord
    calls: dict[str, CallRecord]
    journal: tuple[JournalEntry, ...]
    notes: list[Note]
    spans: list[ProcessSpan]
    samples: Mapping[Series, float]
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

    def calls_that_are(self, status: str) -> int:
        """Return the number of calls with a status."""
        return sum(call.status == status for call in self.calls.values())

    def measured(self, metric: Metric, attributes: Mapping[str, str] | None = None) -> int:
        """Return the value of a counter, or the number of measurements of a histogram, for these attributes."""
        name, _ = to_name(metric.name, metric.unit, metric.kind)
        name += "_count" if metric.kind == "histogram" else "_total"
        labels = set(to_labels(attributes or {}))
        return round(sum(value for (known, of), value in self.samples.items() if known == name and labels <= set(of)))


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
        samples=_samples(options.metrics),
        is_delivered=is_delivered,
    )


def _samples(folder: Path) -> Mapping[Series, float]:
    """Return the samples in the files of a folder, added up."""
    samples: dict[Series, float] = defaultdict(float)
    for path in folder.glob("*.txt"):
        for family in text_string_to_metric_families(path.read_text()):
            for sample in family.samples:
                samples[sample.name, tuple(sorted(sample.labels.items()))] += sample.value
    return samples
