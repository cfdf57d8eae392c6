"""`pellucid rules`: exporting, checking, listing."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import TYPE_CHECKING

import pytest
import yaml

from pellucid.cli import GROUP, main
from pellucid_dashboards.rules import RULES_FILE, Thresholds, render
from support.promtool import Make, level

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("rules", "pellucid_dashboards.rules.command:COMMAND", GROUP)])
    monkeypatch.setattr("pellucid.cli.entry_points", lambda group: points.select(group=group))


def test_export_prints_the_shipped_rules(capsys: pytest.CaptureFixture[str]) -> None:
    """Without options."""
    assert main(["rules", "export"]) == 0
    assert capsys.readouterr().out == RULES_FILE.read_text(encoding="utf-8")


def test_export_writes_other_thresholds(tmp_path: Path) -> None:
    """The head of the file says how it was made."""
    out = tmp_path / "rules.yml"
    arguments = ["--set", "hanging_after=30", "--set", "jobs=a b", "--for-scale", "0.1", "--out", str(out)]
    assert main(["rules", "export", *arguments]) == 0
    assert out.read_text() == render(
        Thresholds(hanging_after=30.0, jobs="a b"),
        scale=0.1,
        how=" --set hanging_after=30 --set 'jobs=a b' --for-scale 0.1",
    )


def test_unknown_thresholds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written then."""
    assert main(["rules", "export", "--set", "cost_per_our=3"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "did you mean cost_per_hour" in said.err


def test_alerts_get_labels(tmp_path: Path) -> None:
    """All alerts and no recorded series, beside their own; the head of the file says how it was made."""
    out = tmp_path / "rules.yml"
    assert main(["rules", "export", "--label", "team=payments", "--label", 'note=a "b": #c=d', "--out", str(out)]) == 0
    exported = yaml.safe_load(out.read_text())["groups"]
    for group, shipped in zip(exported, yaml.safe_load(RULES_FILE.read_text())["groups"], strict=True):
        for rule, before in zip(group["rules"], shipped["rules"], strict=True):
            more = {"team": "payments", "note": 'a "b": #c=d'}
            assert rule == (before if "record" in before else {**before, "labels": {**before["labels"], **more}})
    assert """ --label team=payments --label 'note=a "b": #c=d'.\n""" in out.read_text()


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("team", "not empty"),
        ("team=", "not empty"),
        ("team={{ $labels.job }}", "no template"),
        ("a-team=x", "write NAME=VALUE"),
        ("1team=x", "write NAME=VALUE"),
        ("équipe=x", "write NAME=VALUE"),
        ("__team=x", "write NAME=VALUE"),
        ("=x", "write NAME=VALUE"),
        ("severity=x", "alerts have a label severity"),
        ("alertname=x", "alerts have a label alertname"),
        ("job=x", "alerts have a label job"),
        ("burn=x", "alerts have a label burn"),
        ("missing=x", "alerts have a label missing"),
        ("pellucid_provider_id=x", "alerts have a label pellucid_provider_id"),
        ("exporter=x", "alerts have a label exporter"),
        ("mcp_method_name=x", "alerts have a label mcp_method_name"),
    ],
)
def test_wrong_labels_are_refused(label: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """So are those that would replace what alerts say, or tell them apart by."""
    assert main(["rules", "export", "--label", label]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert said in output.err


def test_a_label_has_one_value(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither of two is dropped in silence."""
    assert main(["rules", "export", "--label", "team=a", "--label", "team=b"]) == 2
    assert "team has the value 'a' already" in capsys.readouterr().err


@pytest.mark.prometheus
def test_prometheus_takes_labels(tmp_path: Path, trial: Make) -> None:
    """An alert that fires has them."""
    out = tmp_path / "rules.yml"
    assert main(["rules", "export", "--label", "team=payments", "--out", str(out)]) == 0
    found = trial({"other": level((1, 3))})
    found.rules = out
    found.firing(1, "Watchdog", {"severity": "none", "team": "payments"})
    found.run()


def test_a_path_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is named."""
    assert main(["rules", "export", "--out", str(tmp_path / "no" / "rules.yml")]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("factor", ["0", "-1", "nan", "inf", "little"])
def test_a_scale_is_a_number_greater_than_zero(factor: str) -> None:
    """Others are refused."""
    with pytest.raises(SystemExit, match="2"):
        main(["rules", "export", f"--for-scale={factor}"])


def test_thresholds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """As `--set` takes them."""
    assert main(["rules", "thresholds"]) == 0
    assert Thresholds().set(capsys.readouterr().out.splitlines()) == Thresholds()


@pytest.mark.prometheus
def test_check_finds_what_is_wrong(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The shipped file unless another is named; what promtool says is shown."""
    assert main(["rules", "check"]) == 0
    assert "SUCCESS" in capfd.readouterr().out
    broken = tmp_path / "broken.yml"
    broken.write_text("groups: [{name: a, rules: [{record: b, expr: 'sum('}]}]")
    assert main(["rules", "check", str(broken)]) != 0
    assert "could not parse expression" in capfd.readouterr().err


def test_check_without_promtool(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what to install."""
    monkeypatch.setenv("PATH", "")
    assert main(["rules", "check"]) == 2
    assert "apt-get install prometheus" in capsys.readouterr().err


def test_check_of_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    """It says how to make one."""
    assert main(["rules", "check", "nowhere.yml"]) == 2
    assert "pellucid rules export --out nowhere.yml" in capsys.readouterr().err
