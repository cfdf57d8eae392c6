"""Runbooks in a terminal and as pages, with the labels of an alert."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pellucid.cli import main
from pellucid.errors import ConfigError
from pellucid_exporters.alerting import runbook_html
from pellucid_exporters.alerting.runbooks import runbook, runbook_names

HOSTILE = '<script>alert(1)</script>"`](javascript:alert(1))&{{7*7}}'


class Read(HTMLParser):
    """Tags, links and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect tags and links."""
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name == "href"]

    def handle_data(self, data: str) -> None:
        """Collect text."""
        self.text += data


def test_a_runbook_has_the_labels_of_its_alert() -> None:
    """In queries as strings of PromQL, elsewhere as they are; without a label, the placeholder stays."""
    text = runbook("toolhubslow", {"pellucid_provider_id": 'say "hi"'})
    assert text.startswith("# ToolHubSlow\n")
    assert '{job="$job", pellucid_provider_id="say \\"hi\\""}' in text
    assert 'operation `discover_tools say "hi"`' in text
    with pytest.raises(ConfigError, match=r"there is no runbook 'ToolHubSlo'; did you mean ToolHubSlow\? there are "):
        runbook("ToolHubSlo", {})


def test_links_of_pages_lead_to_pages() -> None:
    """From the index and between runbooks; other pages of the documentation are named."""
    names = set(runbook_names())
    assert set(Read(runbook_html.index()).links) == names
    for name in names:
        read = Read(runbook_html.page(name, {}))
        assert set(read.links) <= names | {"./"}
    assert "native histograms" not in Read(runbook_html.page("RunFailing", {})).text
    assert "durable runs (docs/durable-runs.md)" in Read(runbook_html.page("ApprovalsWaiting", {})).text


def test_labels_add_no_markup() -> None:
    """Whatever an alert of another team is called: it is text, and shown whole."""
    labels = {"job": HOSTILE, "pellucid_provider_id": HOSTILE, HOSTILE: HOSTILE}
    plain, hostile = Read(runbook_html.page("ToolHubSlow", {})), Read(runbook_html.page("ToolHubSlow", labels))
    assert hostile.tags - plain.tags == {"dl", "dt", "dd"}
    assert hostile.links == plain.links
    assert f"discover_tools {HOSTILE}" in hostile.text


def test_without_the_extra_a_runbook_is_shown_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the labels as text, and what to install."""
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    runbook_html._markdown.cache_clear()
    try:
        read = Read(runbook_html.page("ToolHubSlow", {"pellucid_provider_id": HOSTILE}))
    finally:
        runbook_html._markdown.cache_clear()
    assert f"discover_tools {HOSTILE}" in read.text
    assert "pip install 'pellucid[view]' formats this text." in read.text
    assert read.links == ["./"]


def test_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """A runbook, or the names of all; an unknown one is a usage error."""
    assert main(["runbook", "ToolHubSilent", "--hub", "cat\x1b[31m", "--job", "shop"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert 'age_seconds{job="shop", pellucid_provider_id="cat' in text
    assert main(["runbook"]) == 0
    headings = re.findall(r"^## (\w+)$", (Path(__file__).parents[3] / "docs" / "runbooks.md").read_text(), re.MULTILINE)
    assert capsys.readouterr().out.split() == [name for name in headings if name != "Thresholds"]
    assert main(["runbook", "NoSuchAlert"]) == 2
    assert "there is no runbook 'NoSuchAlert'" in capsys.readouterr().err
