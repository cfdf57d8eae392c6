"""Output of the demo."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from opentelemetry.trace import format_trace_id

from pellucid.durable_runs.records import span_of
from pellucid.nats.options import places_of, servers_of
from pellucid.text import clean
from pellucid_commands.demo.durable.agent import QUESTION
from pellucid_commands.demo.durable.trace import tree_of
from pellucid_commands.demo.page import COLLECTOR, paragraph, row, say, title
from pellucid_exporters.console import Console
from pellucid_exporters.console.displays import make_writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid.durable import RunRecord
    from pellucid_commands.demo.durable.checks import Check
    from pellucid_commands.demo.durable.options import ProcessOptions
    from pellucid_commands.demo.durable.results import Results
    from pellucid_commands.demo.durable.watch import Moment

PAGE: Final = "docs/durable-runs.md"


@dataclass(slots=True, kw_only=True)
class Report:
    """Printer of one demo; each part appears as soon as it is available.

    Attributes:
        started: Time from which moments are counted, in seconds since the epoch.
    """

    color: bool
    started: float = field(default_factory=time.time)

    def introduce(self, options: ProcessOptions, workers: int, lease: float, *, is_temporary: bool) -> None:
        """Print the introduction."""
        self._title("Pellucid demo: a run that survives its process")
        row("question", QUESTION)
        row("store", "a SQLite file, deleted afterwards" if is_temporary else _without_password(options.store))
        if options.queue is not None:
            row("queue", f"NATS at {places_of(servers_of(options.queue))}")
        if options.url is not None:
            row("server", f"{options.url}, without a worker; the run is submitted and its results are returned there")
        row("tools", "reserve_dock, run by the worker; quote_road and quote_rail, jobs for another process")
        row("model", "a script that repeats the results of the tools: no key, no network")
        row("lease", f"{lease:g} s; then {'another worker' if workers == 1 else f'one of {workers} workers'} continues")
        say("\nSeconds, process, and what it does. `store` is what the demo reads in the database.\n")

    def moment(self, moment: Moment) -> None:
        """Print what happened."""
        at, process, text = moment
        say(f"  {at - self.started:5.1f}  {process:<8}  {clean(text)}")

    def answer(self, run: RunRecord) -> None:
        """Print the answer."""
        result: dict[str, Any] = run.result if isinstance(run.result, dict) else {}
        say()
        self._title("Answer")
        paragraph(str(result.get("output") or result.get("error") or run.status))

    def trace(self, results: Results) -> None:
        """Print the trace as a tree."""
        spans = results.spans
        traces = {item.context.trace_id for item in spans}
        processes = {item.process for item in spans}
        self._title(f"Trace: {len(traces)} trace, {len(spans)} spans of {len(processes)} processes")
        writer = make_writer(Console(stream=sys.stdout, live=False, color=self.color))
        writer.show(tree_of(spans, span_of(results.run.trace), results.killed), busy=False)
        writer.stop()

    def checks(self, checks: Sequence[Check]) -> None:
        """Print the checks."""
        self._title("Checked")
        row("on disk", "what each process noted, beside the rows, the journal and the spans")
        for statement, is_true in checks:
            row("ok" if is_true else "WRONG", statement)
        say()

    def next_steps(self, results: Results, store: str | None, otlp: str | None) -> None:
        """Print suggested next steps."""
        self._title("Next")
        row("trace", format_trace_id(results.spans[0].context.trace_id))
        if otlp is None:
            row("", f"pellucid demo durable --otlp {COLLECTOR} sends such a trace to a collector")
        elif not results.is_delivered:
            row("", f"could not be sent to {otlp}; pellucid doctor --otlp {otlp} says why")
        else:
            row("", f"was sent to {otlp}; paste the id into the search of Jaeger or Grafana")
        if store is None:
            row("PostgreSQL", "pellucid demo durable --store postgresql://user@host/database")
        else:
            row("rows", f"run {results.run.id} stays in {_without_password(store)}")
        row("your agent", f"{PAGE}: a durable run of your own in five minutes")

    def _title(self, text: str) -> None:
        title(text, color=self.color)


def _without_password(url: str) -> str:
    """Return a URL without its password."""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":***@")).geturl()
