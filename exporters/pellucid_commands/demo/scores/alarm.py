"""Prometheus with the rules of `pellucid rules export`, whose windows are shorter, if it is installed here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import requests

from pellucid_commands.demo.ports import free_port
from pellucid_commands.demo.scores.agent import SCORE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pellucid_exporters import Telemetry

ALERT: Final = "ScoreDropped"
PATIENCE: Final = 30.0
"""Seconds in which Prometheus must start, and in which the alert must fire."""
SCRAPE: Final = 0.5
"""Seconds between two scrapes, and between two evaluations of the rules."""
_SCALE: Final = "0.0016666667"  # an hour is six seconds
_PAUSE: Final = 0.1


class Alarm:
    """Prometheus that evaluates the rules. Args: url: Its address; empty if it is not installed."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def is_there(self) -> bool:
        """True if Prometheus is installed."""
        return bool(self._url)

    def fired(self) -> Mapping[str, Any] | None:
        """Wait for the alert and return it, or None if it does not fire in time."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for alert in self._get("alerts")["alerts"]:
                labels = alert["labels"]
                is_ours = (labels["alertname"], labels.get("gen_ai_evaluation_name")) == (ALERT, SCORE)
                if is_ours and alert["state"] == "firing":
                    return dict(alert)
            time.sleep(_PAUSE)
        return None

    def has_scraped(self, count: int) -> bool:
        """Wait until Prometheus has so many scores of all versions; return whether it has."""
        until = time.monotonic() + PATIENCE
        query = f'sum(pellucid_evaluation_score_count{{gen_ai_evaluation_name="{SCORE}"}})'
        while time.monotonic() < until:
            found = self._get("query", query=query)["result"]
            if found and float(found[0]["value"][1]) >= count:
                return True
            time.sleep(_PAUSE)
        return False

    def _get(self, what: str, **query: str) -> Any:
        answer = requests.get(f"{self._url}/api/v1/{what}", query, timeout=PATIENCE)
        answer.raise_for_status()
        return answer.json()["data"]


@contextmanager
def alarm(telemetry: Telemetry, folder: Path) -> Iterator[Alarm]:
    """Run Prometheus within the block, if it is installed, on the `/metrics` of this process."""
    program = shutil.which("prometheus")
    if program is None or telemetry.prometheus_url is None:
        yield Alarm("")
        return
    rules, config = folder / "rules.yml", folder / "prometheus.yml"
    exported = ["rules", "export", "--for-scale", _SCALE, "--set", f"score_objectives={SCORE}=0.9", "--out", str(rules)]
    subprocess.run([sys.executable, "-m", "pellucid", *exported], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    target = telemetry.prometheus_url.removeprefix("http://").partition("/")[0]
    often = f"{int(SCRAPE * 1000)}ms"
    settings = {
        "global": {"scrape_interval": often, "evaluation_interval": often, "scrape_timeout": often},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "shop", "static_configs": [{"targets": [target]}]}],
    }
    config.write_text(json.dumps(settings))  # JSON is YAML
    port = free_port()
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with subprocess.Popen(  # noqa: S603
        [program, *arguments, f"--web.listen-address=127.0.0.1:{port}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the demo
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            yield Alarm(url if _is_ready(url) else "")
        finally:
            process.terminate()


def _is_ready(url: str) -> bool:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            if requests.get(f"{url}/-/ready", timeout=PATIENCE).ok:
                return True
        except requests.RequestException:
            pass
        time.sleep(_PAUSE)
    return False
