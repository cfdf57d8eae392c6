"""`docs/get-started.md` leads from an agent to an alert."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.pages import ROOT, blocks_of
from support.processes import PATIENCE, python

PELLUCID = "import sys; from pellucid.cli import main; sys.exit(main())"


def run(folder: Path, *arguments: str) -> str:
    """Run Python in a folder, and return what it prints."""
    done = subprocess.run(
        python("-c", *arguments), cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.stderr == ""
    return done.stdout


def test_a_slow_hub_pages_as_the_page_says(tmp_path: Path) -> None:
    """The runs of its second program make the alert of a slow hub fire; its runbook advises what the page does."""
    page = ROOT / "docs" / "get-started.md"
    run(
        tmp_path, next(block.code for block in blocks_of("python") if block.page == page and "local=True" in block.code)
    )
    shown = run(tmp_path, PELLUCID, "top", "--once")
    assert "PAGE    Tool hub tickets (support) is slow: 100% of the requests to it in 5m" in shown
    assert "pellucid runbook ToolHubSlow --hub tickets" in shown
    assert "≈" not in shown
    assert "`stale_while_revalidate`" in run(tmp_path, PELLUCID, "runbook", "ToolHubSlow", "--hub", "tickets")
