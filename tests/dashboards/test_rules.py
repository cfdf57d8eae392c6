"""The file of rules: it is what the code makes of it, all names in it exist, and each alert says what it should."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import fields, replace
from inspect import getdoc
from pathlib import Path
from typing import Any

import pytest
import yaml

from pellucid import ConfigError
from pellucid.semconv.servers import ALL_METRICS
from pellucid_dashboards.grafana.overview import ALERTS as OVERVIEW
from pellucid_dashboards.names import label, series
from pellucid_dashboards.rules import RULES_FILE, Alert, Record, Thresholds, all_groups, render
from pellucid_dashboards.rules.model import Group
from pellucid_dashboards.rules.stack import WATCHDOG
from pellucid_exporters.alerting.definition import Context
from support.prometheus_server import program
from support.promql import names_in

ROOT = Path(__file__).parent.parent.parent
RULES = [rule for group in all_groups(Context()) for rule in group.rules]
HUB_GROUPS = [group for group in all_groups(Context()) if group.name.startswith("pellucid-hub-")]
OF_SERVICES = [rule for group in all_groups(Context()) if group.name != "pellucid-stack" for rule in group.rules]
"""Rules on what the SDK measures; those on other programs are in `test_stack_alerts.py`."""
ALERTS = [rule for rule in RULES if isinstance(rule, Alert)]
RECORDS = {rule.name for rule in RULES if isinstance(rule, Record)}
FOR_PEOPLE = [alert for alert in ALERTS if alert.name != WATCHDOG]
EACH_ALERT = pytest.mark.parametrize("alert", FOR_PEOPLE, ids=lambda alert: f"{alert.name}-{alert.severity}")

WANTED = {
    "ToolHubSlow", "ToolHubSilent", "ToolHubFailing", "ToolHubDown", "ToolHubCircuitOpen", "ToolCatalogChanging",
    "ToolDefinitionsChanged", "DiscoveryCacheMissStorm", "ToolFailing", "ModelSlow", "ModelFailing", "RunFailing",
    "TokenBurn", "CostBurn", "BudgetNearlySpent", "ApprovalsWaiting", "ExternalToolStuck", "ExternalToolFailing",
    "ExternalResultsRejected", "RunsNotContinuing", "WorkersBehind", "DurableWorkersDying", "AgentProcessBusy",
    "DurableRunsRetrying",
    "TelemetryDropping", "MetricLabelsOverflow", "TargetMissing", "ToolServerSlow", "ToolServerFailing",
    "ToolServerHanging", "ScoreDropped", "ScorerFailing", "Watchdog",
    "CollectorQueueFull", "CollectorRefusing", "CollectorFailing",
    "PrometheusNotificationsFailing", "PrometheusRulesFailing", "ConfigReloadFailing", "AlertmanagerFailing",
    "PrometheusDiskFilling", "PrometheusDiskFailing", "TracesDiskFilling",
}  # fmt: skip

SUFFIXES = {"histogram": ("", "_bucket", "_count", "_sum")}
OF_METRICS = {
    series(metric, suffix): {label(attribute) for attribute in metric.attributes}
    for metric in ALL_METRICS
    for suffix in SUFFIXES.get(metric.kind, ("",))
}
OF_PROMETHEUS = {"job", "instance", "le", "alertname", "alertstate", "missing"}


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_file_is_what_the_code_makes() -> None:
    """The file in the repository is the one that `make dashboards` writes."""
    assert RULES_FILE.read_text(encoding="utf-8") == render()


def test_the_file_is_yaml_with_the_same_rules() -> None:
    """A YAML library reads the same rules from the file, which is written without one."""
    groups = yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"]
    read = [rule for group in groups for rule in group["rules"]]
    assert [rule.get("record") or rule["alert"] for rule in read] == [rule.name for rule in RULES]
    assert [rule["expr"].strip() for rule in read] == [rule.expression.strip() for rule in RULES]


@pytest.mark.prometheus
@pytest.mark.parametrize("scale", [1.0, 0.01, 0.0001])
def test_promtool_accepts_the_file(scale: float, tmp_path: Path) -> None:
    """Promtool accepts the file at each scale."""
    file = tmp_path / "rules.yml"
    file.write_text(render(scale=scale))
    ran = subprocess.run(
        [program("promtool"), "check", "rules", str(file)], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert f"{len(RULES)} rules found" in ran.stdout


def test_all_alerts_are_there() -> None:
    """The alerts are those that the runbooks describe, and no others."""
    assert {alert.name for alert in ALERTS} == WANTED
    sections = anchors(ROOT / "docs" / "runbooks.md")
    assert {name.lower() for name in WANTED} == sections - {"runbooks", "thresholds"}


def test_the_overview_counts_all_alerts() -> None:
    """The first tile of the overview counts all alerts but `Watchdog`, which says that nothing is wrong."""
    assert {name for name in WANTED if re.fullmatch(OVERVIEW.split('"')[1], name)} == WANTED - {WATCHDOG}


def test_one_alert_is_for_no_person() -> None:
    """The one alert with severity `none` is the watchdog, which fires at once and always."""
    [watchdog] = (alert for alert in ALERTS if alert.severity == "none")
    assert (watchdog.name, watchdog.expression, watchdog.after) == (WATCHDOG, "vector(1)", 0.0)


@pytest.mark.parametrize("rule", OF_SERVICES, ids=lambda rule: rule.name)
def test_all_names_exist(rule: Record | Alert) -> None:
    """Each name in a rule is an instrument of `semconv`, a recorded series, or a label of the rule's series."""
    found = names_in(rule.expression)
    assert found.metrics
    assert found.metrics <= {*OF_METRICS, *RECORDS, "up", "ALERTS"}
    of_these = [OF_METRICS[name] for name in found.metrics if name in OF_METRICS]
    recorded = names_of_recorded(found.metrics & RECORDS)
    assert found.labels <= OF_PROMETHEUS.union(recorded, *of_these)


def names_of_recorded(names: set[str]) -> set[str]:
    """Return the labels that recording rules group by."""
    by_name = {rule.name: rule for rule in RULES if isinstance(rule, Record)}
    found: set[str] = set()
    for name in names:
        inside = names_in(by_name[name].expression)
        found |= inside.labels | names_of_recorded(inside.metrics & RECORDS - {name})
    return found


def test_the_tokenizer_finds_names() -> None:
    """The tokenizer finds all metrics and labels of an expression."""
    found = names_in(
        'sum by (job, made) (rate(up{up_to="a{b}", x=~"y"}[5m] offset 1h)) > on (z) group_left a:b_total * 2e3'
    )
    assert found.metrics == {"up", "a:b_total"}
    assert found.labels == {"job", "made", "up_to", "x", "z"}


def test_recorded_series_are_made_before_they_are_read() -> None:
    """A recorded series is made by a rule before those that read it."""
    made: set[str] = set()
    for rule in RULES:
        assert names_in(rule.expression).metrics & RECORDS <= made
        if isinstance(rule, Record):
            made.add(rule.name)


def test_windows_follow_each_other_without_gaps() -> None:
    """Groups whose records are parts of longer windows are evaluated at each multiple of theirs."""
    groups = {group.name: group for group in all_groups(Context())}
    intervals = {"30s": 30, "1m": 60, "2m": 120}
    composed = {name: group for name, group in groups.items() if any(_offsets(rule) for rule in group.rules)}
    assert set(composed) == {f"pellucid-hub-{name}" for name in ("requests", "windows", "long-windows", "waits")}
    for group in composed.values():
        assert group.interval is not None
        shortest = 3600 if "long" in group.name else 300
        assert shortest % intervals[group.interval] == 0


def _offsets(rule: Record | Alert) -> list[str]:
    return re.findall(r"label_replace\(pellucid:\S+ offset", rule.expression)


RARE = ("ToolCatalogChanging", "ToolDefinitionsChanged")


@pytest.mark.parametrize("group", HUB_GROUPS, ids=lambda group: group.name)
def test_only_the_last_minutes_of_processes_are_read(group: Group) -> None:
    """Rules on hubs read only the last minutes of processes, except for changes of catalogues, which are rare."""
    for rule in group.rules:
        windows = re.findall(r"\bpellucid_\w+(?:\{[^}]*\})?\[(\w+)\]", rule.expression)
        assert set(windows) <= ({"1h"} if rule.name in RARE else {"1m", "2m", "5m"}), rule.name


@EACH_ALERT
def test_each_alert_says_what_it_should(alert: Alert) -> None:
    """Each alert has a severity, a subject, a value, and links to its runbook and a dashboard."""
    [read] = [
        rule
        for group in yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
        if rule.get("alert") == alert.name and alert.labels.items() <= rule["labels"].items()
    ]
    assert set(read["annotations"]) == {"summary", "description", "runbook_url", "dashboard_url", *alert.annotations}
    assert read["labels"]["severity"] in ("page", "ticket")
    assert "$labels." in read["annotations"]["summary"]
    assert "$value" in read["annotations"]["summary"]
    assert read["annotations"]["runbook_url"].startswith(f"http://localhost:9095/runbooks/{alert.name}?severity=")
    assert re.fullmatch(
        r"http://localhost:3000/d/pellucid-(overview|tool-hubs|tool-servers|runs-and-models|tools|external-work|telemetry-health)\?var-service=\S.*",
        read["annotations"]["dashboard_url"],
    )


def test_each_part_of_telemetry_has_advice() -> None:
    """Each part that can fail in the SDK's code is listed on the page on telemetry, and has advice in the runbook."""
    code = "\n".join(file.read_text() for file in (ROOT / "sdk" / "pellucid").rglob("*.py"))
    failing = set(re.findall(r'\bfault\("(\w+)"', code))
    assert {"listener", "recording"} < failing
    page = (ROOT / "docs" / "telemetry.md").read_text()
    [listed] = re.findall(r"^\| `pellucid.telemetry.part` .*$", page, re.MULTILINE)
    runbooks = (ROOT / "docs" / "runbooks.md").read_text()
    [advice] = re.findall(r"^## TelemetryDropping$.*?^\*\*Silence", runbooks, re.MULTILINE | re.DOTALL)
    parts = set(re.findall(r"`(\w+)`", listed))
    assert failing <= parts
    assert parts <= set(re.findall(r"`(\w+)`", advice))


def test_thresholds_are_documented() -> None:
    """The docstrings describe each threshold in its group, in the order of the fields."""
    groups = reversed(Thresholds.__mro__[1:-1])
    described = [name for group in groups for name in re.findall(r"^    (\w+): ", getdoc(group) or "", re.MULTILINE)]
    assert described == [field.name for field in fields(Thresholds)]


@pytest.mark.parametrize("name", [field.name for field in fields(Thresholds)])
def test_each_threshold_changes_the_rules(name: str) -> None:
    """Each threshold changes the rules."""
    value = getattr(Thresholds(), name)
    word = "correct=0.9" if name == "score_objectives" else "not_found"
    other = (word,) if isinstance(value, tuple) else value + "/x" if isinstance(value, str) else value * 0.9
    changes: dict[str, Any] = {name: other}
    assert render(replace(Thresholds(), **changes)) != render()


def test_thresholds_are_set_by_name() -> None:
    """Thresholds are set by name to numbers, words and lists; those that are not named keep their values."""
    found = Thresholds().set(["hanging_after=30", "jobs=shop|desk", "tool_refusals=not_found, gone", "hub_failing=.5"])
    assert found == replace(
        Thresholds(), hanging_after=30.0, jobs="shop|desk", tool_refusals=("not_found", "gone"), hub_failing=0.5
    )
    assert Thresholds().set(Thresholds().lines()) == Thresholds()


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("hangin_after=30", "did you mean hanging_after"),
        ("xyzzy=1", "there are slow_budget, "),
        ("hanging_after", "Write --set hanging_after=VALUE"),
        ("hanging_after=soon", "this is not a number"),
        ("hanging_after=nan", "a number greater than 0"),
        ("hanging_after=-1", "a number greater than 0"),
        ("hub_failing=10", "a share is less than 1"),
        ("slow_budget=0.5", "is never reached"),
        ('tool_refusals=a"b', "not a value of error.type"),
        ("score_objectives=correct", "such as correct=0.9"),
        ("score_objectives=correct=good", "such as correct=0.9"),
    ],
)
def test_wrong_thresholds_are_refused(assignment: str, said: str) -> None:
    """A wrong threshold raises ConfigError that says what to write."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        Thresholds().set([assignment])


def test_scaling_leaves_thresholds_alone() -> None:
    """Scaling shrinks windows, `for` and limits per hour, and leaves the age of a fetch that hangs."""
    rules = render(scale=0.01)
    assert "[36s]" in rules
    assert "for: 1200ms" in rules
    assert "* 3, 15)" in rules
    assert "pellucid:cost_usd:increase1h > 0.5\n" in rules


def test_scaled_alerts_say_their_own_windows() -> None:
    """A scaled alert does not mention the windows of the unscaled one."""
    for rule in (rule for group in all_groups(Context(scale=0.01)) for rule in group.rules if isinstance(rule, Alert)):
        said = re.sub("`[^`]*`", "", rule.summary + rule.description)  # without the queries of templates
        assert not re.search(r"\b(5m|10m|30m|1h|6h|\d+ min)\b", said), rule.name


@pytest.mark.prometheus
def test_strange_words_stay_text(tmp_path: Path) -> None:
    """Jobs and addresses with quotes, colons and hashes neither break the file nor leave their strings."""
    strange = 'a"b\\.c: #d'
    file = tmp_path / "rules.yml"
    file.write_text(render(Thresholds(jobs=strange, runbook_base=strange, dashboard_base=strange)))
    ran = subprocess.run(
        [program("promtool"), "check", "rules", str(file)], check=False, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert json.dumps(strange) in file.read_text()
