"""The rules that are shipped, on a real Prometheus, with windows of seconds, for hubs of instrumented agents."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid import semconv
from pellucid_dashboards.names import label, series
from pellucid_dashboards.rules import Thresholds, render
from support.http_hub import http_hub
from support.prometheus_server import PrometheusServer, prometheus_server, scrape_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LOOP: Final = Path(__file__).parents[1] / "frameworks" / "loop.py"
SCALE: Final = 0.02
THRESHOLDS: Final = Thresholds(hanging_after=1.0, slow_min_round_trips=5.0)
"""Shipped thresholds, except those that cannot be reached within seconds."""
HUB: Final = f'{label(semconv.PROVIDER_ID)}="catalogue"'


def page_for_a_slow_and_a_hanging_hub(python: Sequence[str], program: Path, folder: Path, **environ: str) -> None:
    """Run a program with a hub that is slow and then hangs, until both alerts fire.

    Args:
        python: Command of the Python that runs the program.
        program: Program with a `main(url)`.
        folder: Where files may be written.
        environ: The environment.
    """
    listed = f"{series(semconv.HUB_LISTING_DURATION, '_count')}{{{HUB}}}"
    with (
        http_hub() as hub,
        _looping([*python, str(LOOP), str(program), hub.url], folder / "loop.log", environ) as url,
        _judged(url, folder) as prometheus,
    ):
        prometheus.until(lambda: prometheus.value(f"max({listed})"))
        hub.delays["tools/list"] = 0.5
        prometheus.until(lambda: _is_firing(prometheus, "ToolHubSlow"))
        hub.delays["tools/list"] = 600
        prometheus.until(lambda: _is_firing(prometheus, "ToolHubSilent"))


@contextmanager
def _looping(command: Sequence[str], log: Path, environ: Mapping[str, str]) -> Iterator[str]:
    pipe = subprocess.PIPE
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, env=environ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, log.read_text()
        try:
            yield url
        finally:
            process.stdin.close()
            process.wait(60)


@contextmanager
def _judged(url: str, folder: Path) -> Iterator[PrometheusServer]:
    rules = folder / "pellucid_rules.yml"
    rules.write_text(render(THRESHOLDS, scale=SCALE))
    config = {
        "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms"},
        "rule_files": [str(rules)],
        "scrape_configs": [scrape_config(url, interval="250ms")],
    }
    with prometheus_server(config) as prometheus:
        yield prometheus


def _is_firing(prometheus: PrometheusServer, alert: str) -> bool:
    return bool(prometheus.query(f'ALERTS{{alertname="{alert}", alertstate="firing", {HUB}}}'))
