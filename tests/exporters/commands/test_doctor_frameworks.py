"""`pellucid doctor` says which other frameworks are installed, and what shows their hubs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.doctor import Doctor, doctor

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["doctor"]


@pytest.fixture
def strands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the metadata of a framework."""
    folder = tmp_path / "strands_agents-1.62.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: strands-agents\nVersion: 1.62.0\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])


def test_no_other_framework(doctor: Doctor) -> None:
    """There is nothing to do; the version of the MCP SDK is named."""
    assert "none but Pellucid, mcp 2." in doctor().about("frameworks", "ok")[0]


@pytest.mark.usefixtures("strands")
def test_a_framework_is_named_with_its_version(doctor: Doctor) -> None:
    """And whether it is instrumented without a line of code."""
    (line,) = doctor().about("frameworks", "ok")
    assert "strands-agents 1.62.0, mcp 2." in line
    assert "opentelemetry-instrument" in line


@pytest.mark.usefixtures("strands")
def test_instrumentation_that_is_turned_off(doctor: Doctor) -> None:
    """The variable is named."""
    report = doctor(variables=[("OTEL_PYTHON_DISABLED_INSTRUMENTATIONS", "redis, pellucid")])
    assert "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS" in report.about("frameworks", "note")[0]
    assert report.code == 0


@pytest.mark.parametrize("value", ["mcp.example.com", "[1]"])
def test_hubs_that_cannot_be_read(doctor: Doctor, value: str) -> None:
    """The variable is wrong before an application starts."""
    (line,) = doctor(variables=[("PELLUCID_HUBS", value)]).about("environment", "wrong")
    assert "PELLUCID_HUBS is not a JSON object of hubs" in line
