"""Output of the demo around the trees: prompt, failures and their causes, answer, and next steps."""

from __future__ import annotations

import os
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pellucid.text import clean
from pellucid_commands.demo.catalogue_server import LATENCY, RETRY_AFTER
from pellucid_commands.demo.hubs import OBJECTIVE
from pellucid_commands.demo.metrics import SERIES, sample_of_trace, series
from pellucid_commands.demo.script import QUESTION
from pellucid_exporters.console.hub_stats import hub_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pellucid import DiscoveryBackoff, DiscoveryError, RunResult
    from pellucid_exporters.console.hub_stats import HubStats

WIDTH: Final = 98
COLLECTOR: Final = "http://localhost:4318"


@dataclass(slots=True, kw_only=True)
class Report:
    """Printer of one demo; each part appears as soon as it is available.

    Attributes:
        runs: Number of started runs.
    """

    color: bool
    runs: int = 0

    def introduce(self, repository: Path, model: Sequence[str]) -> None:
        """Print the introduction."""
        self._title("Pellucid demo: one agent, three tool hubs, nothing hidden")
        _row("question", QUESTION)
        _row("repository", str(repository))
        _row("hub git", "mcp-server-git, a process of its own, over stdio")
        _row("hub time", "mcp-server-time, likewise")
        _row("hub catalogue", f"an HTTP server of this demo; slow on purpose ({LATENCY:g} s), and down at first")
        _row("objective", f"each hub should list its tools within {OBJECTIVE:g} s")
        for line, text in enumerate(model):
            _row("" if line else "model", text)
        _say("\nStarting the hubs. Then each line is one span; [1] is the iteration of the loop.\n")

    def begin(self) -> None:
        """Print the heading of the next run."""
        self.runs += 1
        self._title(f"Run {self.runs}")

    def failed(self, failure: DiscoveryError) -> None:
        """Print a failed discovery."""
        _paragraph(f"FAILED: {type(failure).__name__}: {failure}")
        _paragraph(
            "The run failed with an error that names the hub: an agent never continues as if a hub that is down "
            "had no tools. Calling it again at once:"
        )

    def refused(self, refusal: DiscoveryBackoff) -> None:
        """Print that a hub received no request."""
        _paragraph(f"REFUSED: {type(refusal).__name__}: {refusal}")
        _paragraph(
            f"This time the hub was not called at all, so that a failing hub is not overloaded; other running work was "
            f"cancelled. The hub asked to be left alone for {RETRY_AFTER} s (Retry-After); the error says how much of "
            f"that remains (retry_after): {refusal.retry_after:.2f} s."
        )

    def answered(self, result: RunResult) -> None:
        """Print the answer."""
        self._title("Answer")
        _paragraph(result.output)

    def hubs(self, stats: Sequence[HubStats]) -> None:
        """Print the statistics of the hubs."""
        self._title("Hubs")
        _say(textwrap.indent(hub_table(stats), "  ") + "\n")
        for hub in stats:
            if hub.verdict == "slow" and hub.p95 is not None and hub.objective is not None:
                _paragraph(
                    f"{hub.provider_id} is slow: {hub.p95:.2f} s against an objective of {hub.objective:g} s. "
                    f"Its cache spared the agent most of that, and still the hub is named."
                )

    def metrics(self, url: str, provider_id: str, trace_id: str) -> None:
        """Print the metrics that Prometheus would scrape."""
        self._title("Metrics")
        _say(f"  {url}\n")
        for metric, meaning in SERIES:
            _say(f"  {series(metric, provider_id)}\n      {meaning}")
        sample = sample_of_trace(url, trace_id, provider_id)
        if sample is not None:
            _say("\n  A bucket as it is served; its exemplar (after the #) names the trace that fell into it:\n")
            for part in sample.replace('",', '", ').replace(" # ", "\n# ").split("\n"):
                _say(_filled(part, "      ", hanging="        "))
        _say()

    def next_steps(self, trace_id: str, otlp: str | None, *, delivered: bool) -> None:
        """Print the trace id and suggested next steps."""
        self._title("Next")
        _row("trace", trace_id)
        if otlp is None:
            _row("", f"pellucid demo --otlp {COLLECTOR} sends such traces to a collector")
        elif delivered:
            _row("", f"was sent to {otlp}; paste the id into the search of Jaeger or Grafana")
        else:
            _row("", f"not all could be sent to {otlp}")
            _row("", f"pellucid doctor --otlp {otlp} says why")
        _row("content", "pellucid demo --content shows the input and output of each span")
        _row("metrics", "pellucid demo --serve keeps /metrics up for your Prometheus")
        _row("your agent", "README.md shows how to get the same from an agent of your own")

    def serving(self, url: str) -> None:
        """Print the URL of `/metrics` and how to stop serving it."""
        _say(f"\nServing {url} until Ctrl-C")

    def _title(self, text: str) -> None:
        _say(f"\033[1m{text}\033[0m" if self.color else f"{text}\n{'-' * len(text)}")


def use_color(*, no_color: bool) -> bool:
    """Return whether to use colours: in a terminal, unless disabled (https://no-color.org)."""
    return sys.stdout.isatty() and not no_color and not os.environ.get("NO_COLOR")


def _row(name: str, text: str) -> None:
    _say(_filled(text, f"  {name:<15}", hanging=" " * 17))


def _paragraph(text: str) -> None:
    for line in text.splitlines():
        _say(_filled(line, "  ", hanging="  "))
    _say()


def _filled(line: str, indent: str, *, hanging: str) -> str:
    """Wrap a line at spaces, and escape terminal control characters in texts of hubs and commits."""
    text = clean(line)
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=hanging, break_on_hyphens=False)


def _say(text: str = "") -> None:
    print(text, flush=True)
