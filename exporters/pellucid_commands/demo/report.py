"""Output of the demo around the trees: prompt, failures and their causes, answer, and next steps."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pellucid_commands.demo.catalogue_server import LATENCY, RETRY_AFTER
from pellucid_commands.demo.hubs import OBJECTIVE
from pellucid_commands.demo.metrics import SERIES, sample_of_trace, series
from pellucid_commands.demo.page import COLLECTOR, filled, paragraph, row, say, title
from pellucid_commands.demo.script import QUESTION
from pellucid_commands.demo.store import view_command
from pellucid_exporters.console.hub_stats import hub_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pellucid import DiscoveryError, RunResult
    from pellucid.errors import DiscoveryBackoff
    from pellucid_commands.demo.repository import Repository
    from pellucid_exporters.console.hub_stats import HubStats


@dataclass(slots=True, kw_only=True)
class Report:
    """Printer of one demo; each part appears as soon as it is available.

    Attributes:
        runs: Number of started runs.
    """

    color: bool
    runs: int = 0

    def introduce(self, repository: Repository, model: Sequence[str]) -> None:
        """Print the introduction."""
        self._title("Pellucid demo: one agent, three tool hubs, nothing hidden")
        row("question", QUESTION)
        row("repository", repository.about)
        row("hub git", repository.server)
        row("hub time", "mcp-server-time, a process of its own, too")
        row("hub catalogue", f"an HTTP server of this demo; slow on purpose ({LATENCY:g} s), and down at first")
        row("objective", f"each hub should list its tools within {OBJECTIVE:g} s")
        for line, text in enumerate(model):
            row("" if line else "model", text)
        say("\nStarting the hubs. Then each line is one span; [1] is the iteration of the loop.\n")

    def begin(self) -> None:
        """Print the heading of the next run."""
        self.runs += 1
        self._title(f"Run {self.runs}")

    def failed(self, failure: DiscoveryError) -> None:
        """Print a failed discovery."""
        paragraph(f"FAILED: {type(failure).__name__}: {failure}")
        paragraph(
            "The run failed with an error that names the hub: an agent never continues as if a hub that is down "
            "had no tools. Calling it again at once:"
        )

    def refused(self, refusal: DiscoveryBackoff) -> None:
        """Print that a hub received no request."""
        paragraph(f"REFUSED: {type(refusal).__name__}: {refusal}")
        paragraph(
            f"This time the hub was not called at all, so that a failing hub is not overloaded; other running work was "
            f"cancelled. The hub asked to be left alone for {RETRY_AFTER} s (Retry-After); the error says how much of "
            f"that remains (retry_after): {refusal.retry_after:.2f} s."
        )

    def answered(self, result: RunResult) -> None:
        """Print the answer."""
        self._title("Answer")
        paragraph(result.output)

    def hubs(self, stats: Sequence[HubStats]) -> None:
        """Print the statistics of the hubs."""
        self._title("Hubs")
        say(textwrap.indent(hub_table(stats), "  ") + "\n")
        for hub in stats:
            if hub.verdict == "slow" and hub.p95 is not None and hub.objective is not None:
                paragraph(
                    f"{hub.provider_id} is slow: {hub.p95:.2f} s against an objective of {hub.objective:g} s. "
                    f"Its cache spared the agent most of that, and still the hub is named."
                )

    def metrics(self, url: str, provider_id: str, trace_id: str) -> None:
        """Print the metrics that Prometheus would scrape."""
        self._title("Metrics")
        say(f"  {url}\n")
        for metric, meaning in SERIES:
            say(f"  {series(metric, provider_id)}\n      {meaning}")
        sample = sample_of_trace(url, trace_id, provider_id)
        if sample is not None:
            say("\n  A bucket as it is served; its exemplar (after the #) names the trace that fell into it:\n")
            for part in sample.replace('",', '", ').replace(" # ", "\n# ").split("\n"):
                say(filled(part, "      ", hanging="        "))
        say()

    def next_steps(self, trace_id: str, otlp: str | None, *, delivered: bool) -> None:
        """Print the trace id and suggested next steps."""
        self._title("Next")
        row("trace", trace_id)
        if otlp is None:
            row("", f"pellucid demo --otlp {COLLECTOR} sends such traces to a collector")
        elif delivered:
            row("", f"was sent to {otlp}; paste the id into the search of Jaeger or Grafana")
        else:
            row("", f"not all could be sent to {otlp}")
            row("", f"pellucid doctor --otlp {otlp} says why")
        row("content", "pellucid demo --content shows the input and output of each span")
        row("metrics", "pellucid demo --serve keeps /metrics up for your Prometheus")
        row("your agent", "README.md shows how to get the same from an agent of your own")

    def store(self, path: Path) -> None:
        """Print how to see the runs in a terminal, and last the line that opens the page."""
        row("terminal", f"pellucid runs, pellucid show RUN and pellucid top read {path}")
        row("page", view_command(path))

    def serving(self, url: str) -> None:
        """Print the URL of `/metrics` and how to stop serving it."""
        say(f"\nServing {url} until Ctrl-C")

    def _title(self, text: str) -> None:
        title(text, color=self.color)
