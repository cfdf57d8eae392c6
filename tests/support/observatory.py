"""Everything between an application and whoever is paged, for real: Prometheus and Alertmanager with what we ship."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import pytest
import yaml

import pellucid_dashboards
from pellucid_dashboards.relay.enriching import Relay
from pellucid_dashboards.relay.server import RelayServer
from pellucid_dashboards.rules import Thresholds, render
from support import alert_scenes
from support.alertmanager_server import Webhook, alertmanager_server, serving, webhook
from support.otlp_receiver import Receiver, otlp_receiver
from support.ports import free_port
from support.processes import python
from support.prometheus_server import PrometheusServer, prometheus_server, scrape_config
from support.scene_process import SceneProcess

FILES: Final = Path(pellucid_dashboards.__file__).parent / "files"
TRACES: Final = "http://jaeger.example"
INTERVAL: Final = "2s"
Labels: TypeAlias = Mapping[str, str]


class Application:
    """A process that plays a scene. Attributes: url: of its metrics, the same after a restart."""

    def __init__(self, scene: str, endpoint: str, folder: Path) -> None:
        self.scene = scene
        self._endpoint = endpoint
        self._log = folder / f"{scene}.log"
        self._port = str(free_port())  # it is started again there, and nobody is given the port meanwhile
        self.url = self.start()

    def start(self) -> str:
        """Start it and return its URL once it serves."""
        command = python(alert_scenes.__file__, self.scene, self._port, self._endpoint)
        self._process = SceneProcess(self.scene, command, self._log, OTEL_BSP_SCHEDULE_DELAY="200")
        return self._process.url

    def order(self, what: str) -> None:
        """Tell it to `break` or to `heal`, and wait until it obeys."""
        self._process.order(what)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def stop(self) -> None:
        """End it as its users do."""
        self._process.stop()


@dataclass
class Observatory:
    """All of it, running.

    Attributes:
        collector: Has the spans of the applications.
        strict: Has those of the application that loses some.
        paged: What people are told.
        applications: By their scene, which is the `job` of their series.
    """

    collector: Receiver
    strict: Receiver
    paged: Webhook
    prometheus: PrometheusServer
    applications: Mapping[str, Application]
    broken_at: float = field(default=0.0)

    def go_wrong(self) -> None:
        """Let everything break that is there to break."""
        self.strict.refusing = True
        self.applications["leaver"].kill()
        self.broken_at = time.monotonic()
        for name in ("hubs", "work", "durable", "blocked", "crowded", "served"):
            self.applications[name].order("break")

    def go_well(self) -> None:
        """Mend all of it."""
        self.strict.refusing = False
        self.applications["leaver"].start()
        self.applications["crowded"].kill()  # series stay as long as the process
        self.applications["crowded"].start()
        for name in ("hubs", "work", "durable", "blocked", "served"):
            self.applications[name].order("heal")

    def told(self, status: str, labels: Labels, timeout: float = 300.0, annotation: str = "summary") -> dict[str, Any]:
        """Return the first alert with these labels, this status and an annotation that people are told; wait for it."""
        notification = self.paged.until(lambda one: _find(one, status, labels, annotation) is not None, timeout)
        found = _find(notification, status, labels, annotation)
        assert found is not None
        return found

    def last_told(self) -> dict[tuple[tuple[str, str], ...], str]:
        """Return the status of each alert, by its labels, as people were told last."""
        alerts = [alert for notification in self.paged.told for alert in notification["alerts"]]
        return {tuple(sorted(alert["labels"].items())): alert["status"] for alert in alerts}

    def is_over(self, labels: Labels) -> bool:
        """Return whether the last that people were told of alerts with these labels is that they are resolved."""
        fitting = [status for found, status in self.last_told().items() if labels.items() <= dict(found).items()]
        return bool(fitting) and set(fitting) == {"resolved"}

    def until_over(self, but: tuple[str, str], timeout: float = 200.0) -> None:
        """Wait until the last that people were told of each alert, but those with a label, is that it is resolved."""
        deadline = time.monotonic() + timeout
        while left := [
            labels for labels, status in self.last_told().items() if but not in labels and status != "resolved"
        ]:
            if time.monotonic() > deadline:
                pytest.fail(f"people still believe in {left}")
            time.sleep(0.05)

    def has_trace(self, trace_id: str) -> bool:
        """Wait until the collector has a trace; it gets spans a moment after they have ended."""
        found: bool = self.prometheus.until(
            lambda: any(span.trace_id.hex() == trace_id for span in self.collector.spans)
        )
        return found


@contextmanager
def observatory(folder: Path, thresholds: Thresholds, *, scale: float) -> Iterator[Observatory]:
    """Run everything, with windows and waiting times that are shorter by a factor, until all applications are seen."""
    with ExitStack() as stack:
        collector = stack.enter_context(otlp_receiver("http/protobuf"))
        strict = stack.enter_context(otlp_receiver("http/protobuf"))
        paged = stack.enter_context(webhook())
        alertmanager = stack.enter_context(alertmanager_server(_alertmanager(folder, paged.url)))
        applications = {}
        for scene in alert_scenes.SCENES:
            endpoint = (strict if scene == "loser" else collector).endpoint
            applications[scene] = Application(scene, endpoint, folder)
            stack.callback(applications[scene].stop)
        relay_server = RelayServer(("127.0.0.1", 0), Relay(prometheus="", alertmanagers=[alertmanager], traces=TRACES))
        relay_url = stack.enter_context(serving(relay_server))
        rules = folder / "pellucid_rules.yml"
        rules.write_text(render(thresholds, scale=scale))
        config = _prometheus(rules, [alertmanager, relay_url], applications.values())
        prometheus = stack.enter_context(prometheus_server(config, features=["exemplar-storage"]))
        relay_server.relay = Relay(prometheus=prometheus.url, alertmanagers=[alertmanager], traces=TRACES)
        yield Observatory(collector, strict, paged, prometheus, applications)


def _find(notification: dict[str, Any], status: str, labels: Labels, annotation: str) -> dict[str, Any] | None:
    fitting = (
        alert
        for alert in notification["alerts"]
        if alert["status"] == status
        and labels.items() <= alert["labels"].items()
        and annotation in alert["annotations"]
    )
    return next(fitting, None)


def _prometheus(rules: Path, alertmanagers: list[str], applications: Any) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [str(rules)],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [urlsplit(url).netloc for url in alertmanagers]}]}]
        },
        "scrape_configs": [
            scrape_config(application.url, interval=INTERVAL, job_name=application.scene)
            for application in applications
        ],
    }


def _alertmanager(folder: Path, url: str) -> Path:
    """Return our configuration with this webhook, and without waiting for more to say."""
    config = yaml.load((FILES / "alertmanager" / "alertmanager.yml").read_text(), yaml.CSafeLoader)
    for receiver in config["receivers"]:
        if receiver["name"] != "watchdog":  # not for people
            receiver["webhook_configs"] = [{"url": url}]
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "1s", "group_interval": "1s", "repeat_interval": "2s"}
    (folder / "pellucid.tmpl").write_text((FILES / "alertmanager" / "pellucid.tmpl").read_text())
    file = folder / "alertmanager.yml"
    file.write_text(yaml.safe_dump(config))
    return file
