"""Rules tried on made-up series: promtool evaluates them minute by minute."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import yaml

from pellucid_dashboards.rules import RULES_FILE
from support.prometheus_server import program

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HERE = 'job="shop",instance="a:9464"'
"""Labels of all series of one process."""
RUBE = f'{HERE},pellucid_provider_id="rube"'
"""Labels of the hub that trials are about."""
HUB = {"job": "shop", "pellucid_provider_id": "rube"}
"""Labels of an alert about it."""
WAITS = "pellucid_tool_discovery_duration_seconds"
"""Metric of the time that runs wait for discovery."""
DURATION = "pellucid_hub_listing_duration_seconds"
"""Metric of the time that hubs take."""
ANSWERED = f'{RUBE},pellucid_provider_kind="hub",pellucid_outcome="completed"'
"""Labels of requests that it answered."""
STALE: Final = math.nan
"""Value that Prometheus writes for each series of a target when a scrape fails: the series has ended."""


def level(*phases: tuple[float, int]) -> list[float]:
    """Return a value for each minute: phases of (value, minutes)."""
    return [value for value, minutes in phases for _ in range(minutes)]


def grow(*phases: tuple[float, int], start: float = 0.0) -> list[float]:
    """Return a counter for each minute, from `start`: phases of (increase per minute, minutes)."""
    found = [start]
    for rate, minutes in phases:
        for _ in range(minutes):
            found.append(found[-1] + rate)
    return found


def late(minutes: int, values: Sequence[float | None]) -> list[float | None]:
    """Return a series that is not there before a minute."""
    return [*([None] * minutes), *values]


def add(*counters: Sequence[float]) -> list[float]:
    """Return the sum of counters."""
    return [sum(values) for values in zip(*counters, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """An alert that fires. Attributes: labels: all of them but `alertname`; summary: of its annotations."""

    labels: Mapping[str, str]
    summary: str = ""


@dataclass(slots=True, kw_only=True)
class Trial:
    """Series, and what rules make of them.

    Attributes:
        series: A value for each minute, `None` where there is none.
        interval: Between two values, if it is not a minute.
    """

    tmp_path: Path
    series: dict[str, Sequence[float | None]]
    rules: Path = RULES_FILE
    interval: str = "1m"
    asked: list[dict[str, Any]] = field(default_factory=list)
    alerts: list[dict[str, Any]] = field(default_factory=list)

    def firing(self, minute: int, alert: str, *expected: Mapping[str, str]) -> None:
        """Expect an alert to fire then, with these labels, and for nobody else."""
        samples = [
            {"labels": _series("ALERTS", alertname=alert, alertstate="firing", **labels), "value": 1}
            for labels in expected
        ]
        expression = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
        self.asked.append({"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples})

    def value(self, minute: int, expression: str, *expected: tuple[Mapping[str, str], float]) -> None:
        """Expect an expression to have these values then; a series of a rule has its name too."""
        name = expression if re.fullmatch(r"[\w:]+", expression) else ""
        samples = [{"labels": _series(name, **labels), "value": value} for labels, value in expected]
        self.asked.append({"expr": expression, "eval_time": f"{minute}m", "exp_samples": samples})

    def told(self, minute: int, alert: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
        """Expect all annotations of the one alert that fires then."""
        told = [{"exp_labels": dict(labels), "exp_annotations": dict(annotations)}]
        self.alerts.append({"alertname": alert, "eval_time": f"{minute}m", "exp_alerts": told})

    def run(self) -> None:
        """Have promtool try it, and fail with what it says."""
        series = [{"series": name, "values": " ".join(map(_text, values))} for name, values in self.series.items()]
        one = {
            "interval": self.interval,
            "input_series": series,
            "promql_expr_test": self.asked,
            "alert_rule_test": self.alerts,
        }
        rules = self.tmp_path / "needed.yml"
        needed = self._needed()
        rules.write_text(json.dumps(needed))  # JSON is YAML
        trial = {
            "rule_files": [str(rules)],
            "evaluation_interval": "1m",
            "group_eval_order": [group["name"] for group in needed["groups"]],  # otherwise it is random
            "tests": [one],
        }
        file = self.tmp_path / "trial.yml"
        file.write_text(json.dumps(trial))
        ran = subprocess.run(
            [program("promtool"), "test", "rules", str(file)], check=False, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def _needed(self) -> dict[str, Any]:
        """Return the rules that the expectations depend on: evaluating all of them takes most of a trial's time."""
        groups = yaml.load(self.rules.read_text(encoding="utf-8"), yaml.CSafeLoader)["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        needed: set[str] = set()
        wanted = {name for check in (*self.asked, *self.alerts) for name in _names(check)}
        while wanted:
            needed |= wanted
            wanted = {name for rule in rules if _name(rule) in needed for name in _names(rule)} - needed
        kept = ({**group, "rules": [rule for rule in group["rules"] if _name(rule) in needed]} for group in groups)
        return {"groups": [group for group in kept if group["rules"]]}


def _name(rule: Mapping[str, Any]) -> str:
    name: str = rule.get("record") or rule["alert"]
    return name


def _names(check: Mapping[str, Any]) -> set[str]:
    """Return the words of an expectation or rule that may be names of rules; annotations have queries too."""
    return set(re.findall(r"[\w:]+", json.dumps(check)))


def _text(value: float | None) -> str:
    if value is None:
        return "_"
    return "stale" if math.isnan(value) else f"{value:.15g}"


def _series(name: str, **labels: str) -> str:
    return f"{name}{{{', '.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"


Make: TypeAlias = Callable[[dict[str, Sequence[float | None]]], Trial]
"""Makes a trial of series, as the fixture `trial` does."""
