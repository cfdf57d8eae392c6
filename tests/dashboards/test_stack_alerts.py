"""Alerts on Collector, Prometheus, Alertmanager and Jaeger, tried minute by minute, and on servers that fail."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import yaml

import pellucid_dashboards
from pellucid_dashboards.rules import all_groups, render
from pellucid_exporters.alerting.definition import Context
from support.alertmanager_server import alertmanager_server
from support.prometheus_server import PrometheusServer, prometheus_server
from support.promql import names_in
from support.promtool import Make, grow, late, level

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pytestmark = pytest.mark.prometheus

HERE = 'job="stack",instance="c:8888"'
LABELS = {"job": "stack", "instance": "c:8888"}
UP = {f"up{{{HERE}}}": level((1, 60))}
SENDING = f'{HERE},exporter="otlp_grpc/jaeger",data_type="traces"'
EXPORTER = {**LABELS, "exporter": "otlp_grpc/jaeger"}
FILES = Path(pellucid_dashboards.__file__).parent / "files" / "alertmanager"
AFTER_2_42 = {f"prometheus_tsdb_{name}_storage_size_bytes" for name in ("wal", "head_chunks")}
"""Metrics that a Prometheus of version 2.42 does not have; without them, the sizes of the blocks are added up."""
NOBODY = "http://127.0.0.1:9"
ITEMS = ("spans", "metric_points", "log_records")


def fired(trial: Make, name: str, series: Mapping[str, Sequence[float | None]], firing: Any, *quiet: int) -> None:
    """Expect an alert at one minute, (minute, labels), and at no other."""
    minute, labels = firing
    found = trial({**UP, **series})
    found.firing(minute, name, labels)
    for other in quiet:
        found.firing(other, name)
    found.run()


def test_a_queue_that_fills(trial: Make) -> None:
    """A queue above four fifths for two minutes opens a ticket; a queue without a capacity has no share."""
    used = {
        f"otelcol_exporter_queue_size{{{SENDING}}}": level((800, 10), (801, 10), (10, 40)),
        f"otelcol_exporter_queue_capacity{{{SENDING}}}": level((1000, 60)),
        f"otelcol_exporter_queue_size{{{SENDING}}}".replace("jaeger", "other"): level((5, 60)),
        f"otelcol_exporter_queue_capacity{{{SENDING}}}".replace("jaeger", "other"): level((0, 60)),
    }
    labels = {**EXPORTER, "data_type": "traces", "severity": "ticket"}
    fired(trial, "CollectorQueueFull", used, (13, labels), 9, 11, 20)


@pytest.mark.parametrize("ending", ["", "_total"])
@pytest.mark.parametrize("items", ITEMS)
def test_a_collector_that_refuses(trial: Make, items: str, ending: str) -> None:
    """The first item that a Collector refuses alerts, with or without suffixes in the names of metrics."""
    name = f'otelcol_receiver_refused_{items}{ending}{{{HERE},receiver="otlp",transport="grpc"}}'
    labels = {**LABELS, "receiver": "otlp", "severity": "ticket"}
    fired(trial, "CollectorRefusing", {name: late(20, level((1, 40)))}, (20, labels), 19, 35)


@pytest.mark.parametrize("ending", ["", "_total"])
@pytest.mark.parametrize("items", ITEMS)
@pytest.mark.parametrize("event", ["send_failed", "enqueue_failed"])
def test_a_collector_that_loses(trial: Make, event: str, items: str, ending: str) -> None:
    """A Collector that loses items opens a ticket by exporter; items lost before do not count."""
    name = f"otelcol_exporter_{event}_{items}{ending}{{{SENDING}}}"
    lost = {name: level((7, 20), (8, 40)), name.replace("jaeger", "other"): level((7, 60))}
    fired(trial, "CollectorFailing", lost, (21, {**EXPORTER, "severity": "ticket"}), 19, 35)


@pytest.mark.parametrize("name", ["errors", "dropped"])
def test_notifications_that_fail_for_long(trial: Make, name: str) -> None:
    """An outage of Alertmanager pages with its address; a restart, in which a minute's alerts are lost, does not."""
    counter = f"prometheus_notifications_{name}_total{{{HERE},alertmanager=%s}}"
    lost = {
        counter % '"http://a"': grow((0, 10), (1, 15), (0, 35)),
        counter % '"http://b"': grow((0, 10), (4, 1), (0, 49)),
    }
    labels = {**LABELS, "alertmanager": "http://a", "severity": "page"}
    fired(trial, "PrometheusNotificationsFailing", lost, (20, labels), 14, 30)


@pytest.mark.parametrize("name", ["rule_evaluation_failures", "rule_group_iterations_missed"])
def test_rules_that_fail(trial: Make, name: str) -> None:
    """A rule that fails three times in ten minutes pages; one that fails twice does not."""
    counter = f'prometheus_{name}_total{{{HERE},rule_group="%s"}}'
    lost = {counter % "a": grow((0, 20), (1, 5), (0, 35)), counter % "b": grow((0, 20), (2, 1), (0, 39))}
    fired(trial, "PrometheusRulesFailing", lost, (25, {**LABELS, "rule_group": "a", "severity": "page"}), 21, 40)


@pytest.mark.parametrize("server", ["prometheus", "alertmanager"])
def test_a_configuration_that_is_not_taken(trial: Make, server: str) -> None:
    """A configuration that is not taken for five minutes opens a ticket."""
    state = {f"{server}_config_last_reload_successful{{{HERE}}}": level((1, 10), (0, 10), (1, 40))}
    fired(trial, "ConfigReloadFailing", state, (15, {**LABELS, "severity": "ticket"}), 14, 20)


@pytest.mark.parametrize("reason", ['reason="serverError",', ""], ids=["a reason", "before reasons"])
def test_messages_that_are_not_sent(trial: Make, reason: str) -> None:
    """One message that is not sent alerts; messages that newer ones replaced are not lost."""
    counter = f'alertmanager_notifications_failed_total{{{HERE},%sintegration="%s"}}'
    lost = {
        counter % (reason, "slack"): level((0, 20), (1, 40)),
        counter % ('reason="contextCanceled",', "email"): grow((1, 60)),
    }
    fired(trial, "AlertmanagerFailing", lost, (21, {**LABELS, "integration": "slack", "severity": "page"}), 19, 35)


def test_data_that_reaches_its_size(trial: Make) -> None:
    """Data near its limit of size for a quarter of an hour opens a ticket; without a limit there is no share."""
    sizes = {
        f"prometheus_tsdb_storage_blocks_bytes{{{HERE}}}": level((7e9, 10), (8e9, 20), (7e9, 30)),
        f"prometheus_tsdb_wal_storage_size_bytes{{{HERE}}}": level((1e9, 60)),
        f"prometheus_tsdb_head_chunks_storage_size_bytes{{{HERE}}}": level((2e8, 60)),
        f"prometheus_tsdb_retention_limit_bytes{{{HERE}}}": level((1e10, 60)),
    }
    unlimited = {name.replace("c:8888", "d:9090"): level((0 if "limit" in name else 1e12, 60)) for name in sizes}
    labels = {**LABELS, "severity": "ticket"}
    fired(trial, "PrometheusDiskFilling", {**sizes, **unlimited}, (26, labels), 9, 24, 30)


@pytest.mark.parametrize("name", ["compactions", "wal_writes", "checkpoint_creations", "head_truncations"])
def test_data_that_is_not_written(trial: Make, name: str) -> None:
    """The first failure to write data pages."""
    lost = {f"prometheus_tsdb_{name}_failed_total{{{HERE}}}": level((0, 20), (1, 40))}
    fired(trial, "PrometheusDiskFailing", lost, (21, {**LABELS, "severity": "page"}), 19, 35)


@pytest.mark.parametrize("name", ["key", "value"])
def test_a_disk_with_traces_that_fills(trial: Make, name: str) -> None:
    """A disk for traces with less than 2 GB free for keys or for values alerts."""
    free = {
        f"jaeger_storage_badger_{each}_log_bytes_available{{{HERE}}}": level((9e9, 60)) for each in ("key", "value")
    }
    free[f"jaeger_storage_badger_{name}_log_bytes_available{{{HERE}}}"] = level((2e9, 10), (1.9e9, 10), (2e9, 40))
    fired(trial, "TracesDiskFilling", free, (16, {**LABELS, "severity": "ticket"}), 9, 14, 20)


def test_the_watchdog_always_fires(trial: Make) -> None:
    """The watchdog fires even if nothing is measured, with no labels but its severity."""
    found = trial({"other": level((1, 3))})
    found.firing(0, "Watchdog", {"severity": "none"})
    found.firing(30, "Watchdog", {"severity": "none"})
    found.run()


# --- real servers -----------------------------------------------------------------------------------------------------


def names_served(url: str) -> set[str]:
    """Return the names of the series that a server has of itself."""
    with urlopen(f"{url}/metrics", timeout=30) as answer:
        return set(re.findall(r"^(\w+)[{ ]", answer.read().decode(), re.MULTILINE))


def names_read() -> set[str]:
    """Return the names of the series that rules on other programs read."""
    [group] = (group for group in all_groups(Context()) if group.name == "pellucid-stack")
    found: set[str] = set()
    for rule in group.rules:
        found |= names_in(rule.expression).metrics
        for pattern in re.findall(r'__name__=~"([^"?]+)"', rule.expression):
            before, choices, after = re.split(r"[()]", pattern)
            found |= {f"{before}{choice}{after}" for choice in choices.split("|")}
    return found


def firing(server: PrometheusServer) -> set[str]:
    """Return the names of the alerts that fire."""
    return {alert["labels"]["alertname"] for alert in server.api("alerts")["alerts"] if alert["state"] == "firing"}


def configured(alertmanagers: Sequence[str], rules: Sequence[Path], jobs: Mapping[str, str]) -> dict[str, Any]:
    """Return a configuration of Prometheus with servers by their URLs."""
    return {
        "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms"},
        "rule_files": [str(file) for file in rules],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [urlsplit(url).netloc for url in alertmanagers]}]}]
        },
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [urlsplit(url).netloc]}]} for name, url in jobs.items()
        ],
    }


def refused(folder: Path) -> Path:
    """Return our configuration of Alertmanager, with receivers that nobody listens to, and without waiting."""
    config = yaml.safe_load((FILES / "alertmanager.yml").read_text())
    for receiver in config["receivers"]:
        receiver["webhook_configs"] = [{"url": f"{NOBODY}/{receiver['name']}"}]
    for route in config["route"]["routes"]:
        route |= {"group_wait": "1s", "group_interval": "1s"}
    (folder / "pellucid.tmpl").write_text((FILES / "pellucid.tmpl").read_text())
    file = folder / "alertmanager.yml"
    file.write_text(json.dumps(config))
    return file


@pytest.mark.integration
def test_servers_that_fail_are_told_of(tmp_path: Path) -> None:
    """Another Prometheus sees that messages and notifications are refused, and that a rule cannot be evaluated.

    All that the rules read of these servers is served by them.
    """
    rules, broken = tmp_path / "rules.yml", tmp_path / "broken.yml"
    rules.write_text(render(scale=0.05))
    one = {"record": "twice", "expr": "label_replace({__name__=~'up|scrape_samples_scraped'}, '__name__', 'a', '', '')"}
    broken.write_text(json.dumps({"groups": [{"name": "broken", "rules": [one]}]}))
    with (
        alertmanager_server(refused(tmp_path)) as alertmanager,
        prometheus_server(configured([alertmanager, NOBODY], [rules, broken], {"am": alertmanager})) as watched,
        prometheus_server(configured([], [rules], {"am": alertmanager, "prometheus": watched.url})) as watching,
    ):
        wanted = {"AlertmanagerFailing", "PrometheusNotificationsFailing", "PrometheusRulesFailing", "Watchdog"}
        watching.until(lambda: firing(watching) >= wanted)
        assert firing(watching) == wanted
        served = names_served(watched.url) | names_served(alertmanager)
    read = {name for name in names_read() if name.startswith(("prometheus_", "alertmanager_"))}
    assert len(read) == 15
    assert read - served <= AFTER_2_42
