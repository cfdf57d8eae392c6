"""Output of the demo around the trees: introduction, failures and their causes, answer, hubs, and next steps."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pellucid_commands.demo.hubs import LATENCY, OBJECTIVE
from pellucid_commands.demo.page import paragraph, row, say, title
from pellucid_commands.demo.script import QUESTION
from pellucid_exporters.console.hub_stats import hub_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import DiscoveryError
    from pellucid.errors import DiscoveryBackoff
    from pellucid_commands.demo.repository import Repository
    from pellucid_exporters.console.hub_stats import HubStats


@dataclass(slots=True)
class Report:
    """Printer of one demo; each part appears as soon as it is available.

    Attributes:
        color: Whether to use colours.
        runs: Number of started runs.
    """

    color: bool
    runs: int = 0

    def introduce(self, repository: Repository, model: Sequence[str]) -> None:
        """Print the introduction."""
        title("Pellucid demo: one agent, three tool hubs, nothing hidden", color=self.color)
        row("question", QUESTION)
        row("repository", repository.about)
        row("hub git", repository.server)
        row("hub time", "mcp-server-time, a process of its own, too")
        row("hub catalogue", f"a registry of this demo; slow on purpose ({LATENCY:g} s), and down at first")
        row("objective", f"each hub should list its tools within {OBJECTIVE:g} s")
        for line, text in enumerate(model):
            row("" if line else "model", text)
        say("\nStarting the hubs. Then each line is one span; [1] is the iteration of the loop.\n")

    def begin(self) -> None:
        """Print the heading of the next run."""
        self.runs += 1
        title(f"Run {self.runs}", color=self.color)

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
            "This time the hub was not called at all, so that a failing hub is not overloaded; other running work was "
            f"cancelled. The hub asked to be left alone; the error says for how long (retry_after): "
            f"{refusal.retry_after:.2f} s."
        )

    def answered(self, answer: str, hubs: Sequence[HubStats]) -> None:
        """Print the answer, and the statistics of the hubs."""
        title("Answer", color=self.color)
        paragraph(answer)
        title("Hubs", color=self.color)
        say(textwrap.indent(hub_table(hubs), "  ") + "\n")
        for hub in hubs:
            if hub.verdict == "slow" and hub.p95 is not None and hub.objective is not None:
                paragraph(
                    f"{hub.provider_id} is slow: {hub.p95:.2f} s against an objective of {hub.objective:g} s. "
                    f"Its cache spared the agent most of that, and still the hub is named."
                )
