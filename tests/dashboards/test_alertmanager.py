"""Our configuration and templates of Alertmanager, read and rendered by its own programs."""

from __future__ import annotations

import json
import re
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import pellucid_dashboards
from pellucid import semconv
from pellucid_dashboards.names import label
from support.alertmanager_server import alertmanager_server, post, webhook
from support.prometheus_server import program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pytestmark = pytest.mark.prometheus

FOLDER = Path(pellucid_dashboards.__file__).parent / "files" / "alertmanager"
CONFIG = FOLDER / "alertmanager.yml"
PROVIDER = label(semconv.PROVIDER_ID)

LABELS = {"alertname": "ToolHubSlow", "severity": "page", "job": "team/shop", PROVIDER: "search & co"}
ANNOTATIONS = {
    "summary": "search & co: p95 0.9 s, objective 0.2 s",
    "dashboard_url": "/d/pellucid-tool-hubs?var-provider=search",
    "runbook_url": "https://example.com/runbooks#toolhubslow",
}


def test_alertmanager_reads_its_configuration() -> None:
    """Amtool accepts configuration and templates."""
    done = subprocess.run([program("amtool"), "check-config", CONFIG], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 templates" in done.stdout


@pytest.mark.parametrize(("severity", "receiver"), [("page", "page"), ("ticket", "ticket"), ("other", "ticket")])
def test_routes_go_by_severity(severity: str, receiver: str) -> None:
    """Pages go to the receiver of pages, and all other alerts to that of tickets."""
    command = [program("amtool"), "config", "routes", "test", f"--config.file={CONFIG}", f"severity={severity}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == receiver


def test_the_watchdog_has_a_route_of_its_own() -> None:
    """The watchdog goes to its own receiver, whatever its labels are; that receiver tells nobody until it has a URL."""
    labels = ("alertname=Watchdog", "severity=none", "team=payments")
    command = [program("amtool"), "config", "routes", "test", f"--config.file={CONFIG}", *labels]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "watchdog"
    config = yaml.safe_load(CONFIG.read_text())
    [receiver] = (each for each in config["receivers"] if each["name"] == "watchdog")
    assert set(receiver) == {"name"}


def test_the_example_for_a_watchdog_is_valid(tmp_path: Path) -> None:
    """The commented example of the watchdog's webhook is valid once its comment signs are removed."""
    text = CONFIG.read_text()
    example = re.sub(r"^    # ", "    ", text, flags=re.MULTILINE)
    [receiver] = (each for each in yaml.safe_load(example)["receivers"] if each["name"] == "watchdog")
    assert receiver["webhook_configs"] == [{"url": "https://deadman.example/ping", "send_resolved": False}]
    file = tmp_path / "alertmanager.yml"
    file.write_text(example)
    (tmp_path / "pellucid.tmpl").write_text((FOLDER / "pellucid.tmpl").read_text())
    command = [program("amtool"), "check-config", str(file)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0


@pytest.mark.integration
def test_the_watchdog_is_neither_held_back_nor_holds_back(tmp_path: Path) -> None:
    """The watchdog's alert is sent although a service with its labels has gone, and holds back no other alert."""
    gone = {"alertname": "TargetMissing", "missing": "service", "severity": "page", "job": "shop"}
    watchdog = {"alertname": "Watchdog", "severity": "none", "job": "shop"}
    failing = {"alertname": "RunFailing", "severity": "page", "job": "desk"}
    with webhook() as hook, alertmanager_server(_with_webhook(tmp_path, hook.url)) as url:
        post(f"{url}/api/v2/alerts", [{"labels": labels} for labels in (gone, failing, watchdog)])
        for name in ("TargetMissing", "RunFailing", "Watchdog"):
            told = hook.until(partial(_tells_of, name))
            assert told["receiver"] == ("watchdog" if name == "Watchdog" else "page")
            assert len(told["alerts"]) == 1


@pytest.mark.parametrize("severity", ["page", "ticket"])
def test_hubs_have_routes_of_their_own(severity: str) -> None:
    """An alert on a hub goes to the receiver of its severity."""
    labels = (f"severity={severity}", f"{PROVIDER}=search", "job=shop")
    command = [program("amtool"), "config", "routes", "test", f"--config.file={CONFIG}", *labels]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == severity


def rendered(name: str, folder: Path, *alerts: Mapping[str, Any], status: str = "firing") -> str:
    """Return what amtool makes of a template and alerts."""
    file = folder / "data.json"
    file.write_text(json.dumps({"status": status, "alerts": alerts, "commonLabels": alerts[0]["labels"]}))
    command = [
        program("amtool"),
        "template",
        "render",
        f"--template.glob={FOLDER}/*.tmpl",
        f'--template.text={{{{ template "{name}" . }}}}',
        f"--template.data={file}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def alert(labels: Mapping[str, str], annotations: Mapping[str, str], status: str = "firing") -> dict[str, Any]:
    """Return an alert as templates see it."""
    return {"status": status, "labels": dict(labels), "annotations": dict(annotations)}


def test_a_message_has_hub_number_objective_and_links(tmp_path: Path) -> None:
    """The text of a message has the summary, the hub, the application, and links to trace, dashboard and runbook."""
    found = alert(LABELS, {**ANNOTATIONS, "trace_url": "http://localhost:16686/trace/abc"})
    assert rendered("pellucid.text", tmp_path, found).splitlines()[:6] == [
        "search & co: p95 0.9 s, objective 0.2 s",
        "Hub: search & co",
        "Application: team/shop",
        "Trace: http://localhost:16686/trace/abc",
        "Dashboard: http://localhost:3000/d/pellucid-tool-hubs?var-provider=search",
        "Runbook: https://example.com/runbooks#toolhubslow",
    ]


@pytest.mark.parametrize(
    ("labels", "operation"),
    [
        ({PROVIDER: "search & co"}, "&operation=discover_tools+search+%26+co"),
        ({label(semconv.TOOL_NAME): "find", PROVIDER: "x"}, "&operation=execute_tool+find"),
        ({label(semconv.AGENT_NAME): "main"}, "&operation=invoke_agent+main"),
        ({label(semconv.REQUEST_MODEL): "m"}, "&operation=chat+m"),
        ({}, ""),
    ],
)
def test_a_message_without_a_trace_has_a_search(tmp_path: Path, labels: dict[str, str], operation: str) -> None:
    """A message without a trace links to Jaeger's search for the alert's subject, in the service that the job names."""
    text = rendered("pellucid.text", tmp_path, alert({"alertname": "X", "job": "team/shop", **labels}, {}))
    assert f"Trace: http://localhost:16686/search?lookback=1h&limit=20&service=shop{operation}\n" in text


def test_a_title_says_what_how_many_and_how_urgent(tmp_path: Path) -> None:
    """A title names one alert with its hub, counts several, and says so of those that are over."""
    firing, resolved = alert(LABELS, ANNOTATIONS), alert(LABELS, ANNOTATIONS, "resolved")
    assert rendered("pellucid.title", tmp_path, firing) == "[page] ToolHubSlow search & co"
    assert (
        rendered("pellucid.title", tmp_path, firing, resolved)
        == "[page] ToolHubSlow search & co (1 firing, 1 resolved)"
    )
    assert rendered("pellucid.title", tmp_path, resolved, status="resolved") == "[resolved] ToolHubSlow search & co"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("source", "explained"),
    [
        ("ToolHubDown", ["ToolHubSlow", "ToolHubFailing"]),
        ("ToolHubSilent", ["ToolHubSlow", "ToolHubFailing", "ToolHubDown"]),
    ],
)
def test_a_hub_is_one_page(tmp_path: Path, source: str, explained: Sequence[str]) -> None:
    """A hub that is down or silent is one page: its other alerts are held back, and Slack gets our words."""
    others = [{**LABELS, "alertname": name} for name in explained]
    tickets = [{**LABELS, "alertname": name, "severity": "ticket"} for name in ("ToolHubSlow", "ToolHubCircuitOpen")]
    elsewhere = [{**LABELS, PROVIDER: "other"}, {**LABELS, "job": "team/other"}]
    with webhook() as hook, alertmanager_server(_with_slack(tmp_path, hook.url)) as url:
        sources = [{**LABELS, "alertname": source}, *others, *tickets, *elsewhere]
        post(f"{url}/api/v2/alerts", [{"labels": labels, "annotations": ANNOTATIONS} for labels in sources])
        first = hook.until(lambda told: source in json.dumps(told))
        assert first["attachments"][0]["title"] == f"[page] {source} search & co"
        assert "p95 0.9 s, objective 0.2 s" in first["attachments"][0]["text"]
        hook.until(lambda told: "ToolHubSlow other" in json.dumps(told))
        told = hook.until(lambda told: "ToolHubSlow search" in json.dumps(told))
        assert "team/other" in json.dumps(told)
        assert "team/shop" not in json.dumps(told)
        for name in {*explained, "ToolHubCircuitOpen"} - {"ToolHubSlow"}:
            assert name not in json.dumps(hook.told)
        assert "[ticket]" not in json.dumps(hook.told)


@pytest.mark.integration
def test_a_hub_that_is_slow_and_fails_tells_of_both(tmp_path: Path) -> None:
    """A hub that is slow and fails pages for both: neither alert holds back the other."""
    failing = {**LABELS, "alertname": "ToolHubFailing"}
    with webhook() as hook, alertmanager_server(_with_slack(tmp_path, hook.url)) as url:
        post(f"{url}/api/v2/alerts", [{"labels": labels} for labels in (failing, LABELS)])
        hook.until(lambda told: "[page] ToolHubFailing search" in json.dumps(told))
        hook.until(lambda told: "[page] ToolHubSlow search" in json.dumps(told))


@pytest.mark.integration
def test_no_ticket_keeps_back_a_page(tmp_path: Path) -> None:
    """No ticket holds back a page: somebody is paged for failures although a ticket says that the circuit is open."""
    opened = {**LABELS, "alertname": "ToolHubCircuitOpen", "severity": "ticket"}
    failing = {**LABELS, "alertname": "ToolHubFailing"}
    with webhook() as hook, alertmanager_server(_with_slack(tmp_path, hook.url)) as url:
        post(f"{url}/api/v2/alerts", [{"labels": opened}])
        hook.until(lambda told: "[ticket] ToolHubCircuitOpen" in json.dumps(told))
        post(f"{url}/api/v2/alerts", [{"labels": failing}])
        hook.until(lambda told: "[page] ToolHubFailing" in json.dumps(told), timeout=10)


@pytest.mark.integration
def test_an_application_that_has_gone_is_one_page(tmp_path: Path) -> None:
    """An application that has gone holds back all else about it, also missing targets; other applications page."""
    gone = {"alertname": "TargetMissing", "missing": "service", "severity": "page", "job": "team/shop"}
    target = {**gone, "missing": "target", "severity": "ticket", "instance": "shop:9464"}
    failing = {"alertname": "RunFailing", "severity": "page", "job": "team/shop", label(semconv.AGENT_NAME): "main"}
    elsewhere = {**failing, "job": "team/other"}
    with webhook() as hook, alertmanager_server(_with_slack(tmp_path, hook.url)) as url:
        post(f"{url}/api/v2/alerts", [{"labels": labels} for labels in (gone, target, failing, elsewhere)])
        hook.until(lambda told: "TargetMissing" in json.dumps(told))
        told = hook.until(lambda told: "RunFailing" in json.dumps(told))
        assert "team/other" in json.dumps(told)
        assert "team/shop" not in json.dumps(told)
        assert not [told for told in hook.told if "[ticket]" in json.dumps(told)]


@pytest.mark.integration
@pytest.mark.parametrize(
    "subject",
    [
        {"alertname": "RunFailing", label(semconv.AGENT_NAME): "main", "severity": "page"},
        {"alertname": "ModelFailing", label(semconv.REQUEST_MODEL): "gpt", "severity": "page"},
        {"alertname": "ToolFailing", label(semconv.TOOL_NAME): "find", "severity": "ticket"},
        {"alertname": "CostBurn", label(semconv.REQUEST_MODEL): "gpt", "severity": "page"},
        {"alertname": "TargetMissing", "missing": "service", "severity": "page"},
    ],
    ids=lambda subject: subject["alertname"],
)
def test_another_service_that_fails_is_a_notification_of_its_own(tmp_path: Path, subject: dict[str, str]) -> None:
    """The same alert of another service is a notification in a group of its own."""
    shop, desk = {**subject, "job": "shop"}, {**subject, "job": "desk"}
    with webhook() as hook, alertmanager_server(_with_webhook(tmp_path, hook.url)) as url:
        post(f"{url}/api/v2/alerts", [{"labels": shop}])
        first = hook.until(lambda told: _jobs(told) == ["shop"])
        post(f"{url}/api/v2/alerts", [{"labels": shop}, {"labels": desk}])
        second = hook.until(lambda told: _jobs(told) == ["desk"])
        assert first["groupKey"] != second["groupKey"]


@pytest.mark.integration
@pytest.mark.parametrize("name", [label(semconv.AGENT_NAME), label(semconv.REQUEST_MODEL), label(semconv.TOOL_NAME)])
def test_another_agent_model_or_tool_is_a_notification_of_its_own(tmp_path: Path, name: str) -> None:
    """Alerts on two agents, models or tools of one service are notifications of their own."""
    one, other = ({"alertname": "X", "severity": "page", "job": "shop", name: value} for value in ("one", "other"))
    with webhook() as hook, alertmanager_server(_with_webhook(tmp_path, hook.url)) as url:
        post(f"{url}/api/v2/alerts", [{"labels": one}, {"labels": other}])
        hook.until(lambda told: [each["labels"][name] for each in told["alerts"]] == ["one"])
        hook.until(lambda told: [each["labels"][name] for each in told["alerts"]] == ["other"])


@pytest.mark.integration
def test_a_hub_is_one_notification_for_all_services(tmp_path: Path) -> None:
    """An alert on a hub is one notification for all services that see it."""
    alerts = [{"labels": {**LABELS, "job": job}} for job in ("shop", "desk")]
    with webhook() as hook, alertmanager_server(_with_webhook(tmp_path, hook.url)) as url:
        post(f"{url}/api/v2/alerts", alerts[:1])
        first = hook.until(lambda told: _jobs(told) == ["shop"])
        post(f"{url}/api/v2/alerts", alerts)
        second = hook.until(lambda told: _jobs(told) == ["desk", "shop"])
        assert first["groupKey"] == second["groupKey"]


def _tells_of(name: str, notification: Mapping[str, Any]) -> bool:
    return name in json.dumps(notification["alerts"])


def _jobs(notification: Mapping[str, Any]) -> list[str]:
    return sorted(alert["labels"]["job"] for alert in notification["alerts"])


def _with_webhook(folder: Path, url: str) -> Path:
    """Return our configuration with this webhook, and without waiting."""
    config = yaml.safe_load(CONFIG.read_text())
    for receiver in config["receivers"]:
        receiver["webhook_configs"] = [{"url": url}]
    return _written(folder, config)


def _with_slack(folder: Path, url: str) -> Path:
    """Return our configuration with the receiver that is shown as an example in it, and without waiting."""
    shipped = CONFIG.read_text()
    example = "\n".join(
        line.removeprefix("  # ") for line in shipped.splitlines() if line.startswith(("  # -", "  #  "))
    )
    [receiver] = yaml.safe_load(example)
    assert receiver["slack_configs"][0].pop("api_url_file")
    receiver["slack_configs"][0]["api_url"] = url
    config = yaml.safe_load(shipped)
    config["receivers"] = [{**receiver, "name": each["name"]} for each in config["receivers"]]
    return _written(folder, config)


def _written(folder: Path, config: Any) -> Path:
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "1s"}
    (folder / "pellucid.tmpl").write_text((FOLDER / "pellucid.tmpl").read_text())
    file = folder / "alertmanager.yml"
    file.write_text(yaml.safe_dump(config))
    return file
