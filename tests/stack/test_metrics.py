"""Metrics in Prometheus, sent by the Collector or scraped: labels, native histograms, exemplars, rules, panels."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from pellucid import semconv
from pellucid.semconv.servers import ALL_METRICS
from pellucid_dashboards.grafana import dashboards
from pellucid_dashboards.names import series
from pellucid_dashboards.rules import Record, all_groups
from pellucid_exporters.alerting.definition import Context
from stack.application import CROWDED, SAMPLED
from stack.scene import Application, applications, until
from support.compose_files import example_targets
from support.dashboard_queries import panel_queries, variable_queries
from support.nats_server import nats_server
from support.ports import free_port
from support.promql import parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stack.compose import Stack
    from stack.scene import Jaeger
    from support.dashboard_queries import Asked
    from support.prometheus_server import PrometheusServer
    from support.promql import Selector

pytestmark = [pytest.mark.integration, pytest.mark.stack]

PATIENCE: Final = 240.0
HISTOGRAMS: Final = sorted(series(metric) for metric in ALL_METRICS if metric.kind == "histogram")
CLASSIC: Final = {f"{name}_{part}" for name in HISTOGRAMS for part in ("bucket", "count", "sum")}
"""Series of histograms with classic buckets, which the stack does not keep; queries read either kind."""
RECORDED: Final = [rule.name for group in all_groups(Context()) for rule in group.rules if isinstance(rule, Record)]
DISCOVERIES: Final = series(semconv.DISCOVERY_DURATION)


@pytest.fixture(scope="module")
def kiosk(stack: Stack) -> Iterator[Application]:
    """Run an application like the shop, whose metrics Prometheus scrapes as its file of targets says."""
    port = free_port()
    targets = stack["prometheus"].mounted("/etc/prometheus") / "targets"
    with nats_server() as nats:
        endpoint = stack["otel-collector"].url(port=4318)
        kiosk = Application("kiosk", "everything", endpoint, stack.folder, str(port), NATS_URL=nats.url)
        [example] = yaml.safe_load(example_targets())
        example["labels"]["job"] = "kiosk"
        example["targets"] = [f"127.0.0.1:{port}"]
        (targets / "kiosk.yml").write_text(yaml.safe_dump([example]))
        yield kiosk
        kiosk.stop()
        (targets / "kiosk.yml").unlink()


def filled(prometheus: PrometheusServer, job: str) -> set[str]:
    """Return the names of the histograms of which jobs have native ones."""
    found = prometheus.query(f'{{job=~"{job}", __name__=~"{"|".join(HISTOGRAMS)}"}}')
    return {each["metric"]["__name__"] for each in found if "histogram" in each}


@pytest.mark.usefixtures("shop", "demo")
def test_a_job_is_a_service_and_its_histograms_are_native(prometheus: PrometheusServer) -> None:
    """A job that the Collector sends has `instance` and `target_info`, and its histograms are native only."""
    until(lambda: set(HISTOGRAMS) - filled(prometheus, "shop|pellucid-demo") == set(), PATIENCE, "native histograms")
    [one] = prometheus.query(
        f'{DISCOVERIES}{{job="shop", pellucid_provider_id="docs", pellucid_discovery_cache="miss"}}'
    )
    assert "histogram" in one
    assert one["metric"]["instance"]
    assert prometheus.query('{job="shop", __name__=~".+_bucket"}') == []
    [target] = prometheus.query('target_info{job="shop"}')
    assert target["metric"]["telemetry_sdk_language"] == "python"


def test_a_scraped_job_has_native_histograms(prometheus: PrometheusServer, kiosk: Application) -> None:
    """A scraped job has native histograms only."""
    names = until(lambda: filled(prometheus, "kiosk"), PATIENCE, "native histograms")
    assert DISCOVERIES in names
    assert prometheus.query('{job="kiosk", __name__=~".+_bucket"}') == []


@pytest.mark.usefixtures("shop", "kiosk")
@pytest.mark.parametrize("job", ["shop", "kiosk"])
def test_exemplars_lead_to_traces(prometheus: PrometheusServer, jaeger: Jaeger, job: str) -> None:
    """Exemplars of a hub's latency lead to traces in Jaeger, with the span that was measured."""
    found = until(lambda: prometheus.exemplars(f'{DISCOVERIES}{{job="{job}"}}'), PATIENCE, "exemplars")
    labels = found[-1]["labels"]
    spans = until(lambda: jaeger.spans(labels["trace_id"]), 60, "a trace")
    [span] = [span for span in spans if span["spanId"] == labels["span_id"]]
    assert span["name"].startswith("discover_tools ")


def test_the_stack_watches_itself(prometheus: PrometheusServer) -> None:
    """The servers that `prometheus.yml` names are scraped."""

    def up() -> set[str]:
        return {each["metric"]["instance"] for each in prometheus.query('up{job="stack"} == 1')}

    until(lambda: len(up()) == 4, 60, "targets that are up")


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", RECORDED)
def test_each_recorded_series_has_data(prometheus: PrometheusServer, name: str) -> None:
    """Each recording rule records something of what applications send."""
    until(lambda: prometheus.query(name), PATIENCE, name)


@pytest.mark.usefixtures("broken")
def test_no_rule_fails(prometheus: PrometheusServer) -> None:
    """Prometheus evaluates every rule without an error."""

    def unevaluated() -> list[dict[str, Any]]:
        groups = prometheus.api("rules")["groups"]
        return [rule for group in groups for rule in group["rules"] if rule["health"] != "ok"]

    until(lambda: not unevaluated(), PATIENCE, "rules")  # groups of long windows are evaluated every 2 min


LONGEST_FOR: Final = 300.0
"""Seconds for which the condition of an alert of a dashboard holds before it fires."""


@pytest.fixture(scope="module")
def sampled(stack: Stack) -> Iterator[None]:
    """Run an application that sends failed runs only, and loses spans that do not fit into its queue."""
    sizes = {"OTEL_BSP_MAX_QUEUE_SIZE": "2", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1"}
    with nats_server() as nats, applications(stack, {SAMPLED: "everything"}, NATS_URL=nats.url, **sizes):
        yield


@pytest.fixture(scope="module")
def crowded(stack: Stack) -> Iterator[None]:
    """Run an application that uses more hubs than it may have series."""
    with applications(stack, {CROWDED: CROWDED}) as running:
        running[CROWDED].order("break")
        yield


def unfilled(prometheus: PrometheusServer, asked: Asked) -> Sequence[str]:
    """Return what a query lacks: data for it, or for one of its selectors, but those of classic histograms."""
    selectors: list[Selector] = parse(asked.filled_in())[0]
    wanted = [each for each in selectors if each.name not in CLASSIC]
    lacking = [str(each) for each in wanted if not prometheus.query(f"last_over_time({each}[1h])")]
    return lacking or ([] if prometheus.query(asked.filled_in()) else [asked.filled_in()])


@pytest.mark.usefixtures("broken", "shop", "kiosk", "sampled", "crowded")
@pytest.mark.parametrize("uid", dashboards())
def test_every_query_of_a_dashboard_has_data(prometheus: PrometheusServer, uid: str) -> None:
    """Each query of a dashboard has data, by each of its selectors, from what is sent and what is scraped."""
    board = dashboards()[uid]
    left = [*(asked for found in panel_queries(board).values() for asked in found), *variable_queries(board)]

    def lacking() -> list[tuple[str, Sequence[str]]]:
        nonlocal left
        found = [(each, unfilled(prometheus, each)) for each in left]
        left = [each for each, missing in found if missing]
        return [(str(each), missing) for each, missing in found if missing]

    deadline = time.monotonic() + PATIENCE + LONGEST_FOR
    while missing := lacking():
        assert time.monotonic() < deadline, missing
        time.sleep(0.5)
