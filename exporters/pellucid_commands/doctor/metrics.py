"""Checks of the application's `/metrics`: reachability, OpenMetrics, and series that dashboards and alerts need."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid.semconv.servers import ALL_METRICS
from pellucid_commands.doctor.findings import Finding, Setup
from pellucid_commands.doctor.web import Page, Unreachable, fetch, unreachable
from pellucid_exporters.collected import OVERFLOW
from pellucid_exporters.options import resolve_prometheus
from pellucid_exporters.prometheus.naming import to_labels, to_name
from pellucid_exporters.urls import is_url, shown

About: Final = "/metrics"
OPENMETRICS: Final = "application/openmetrics-text"
PROTOBUF: Final = "application/vnd.google.protobuf"
FRESH: Final = 240.0
"""Seconds for which an exemplar is guaranteed to be served."""

_STATUSES: Final = {
    401: "give the token by --token-file FILE",
    403: "it does not let this machine in",
    404: "give the whole URL, with its path",
}


def check_metrics(setup: Setup) -> Iterator[Finding]:
    """Scrape the application once in each format."""
    url = _url(setup)
    if url is None:
        yield Finding("note", About, "not checked", "--metrics http://127.0.0.1:9464/metrics checks an application")
        return
    if not is_url(url):
        yield Finding("wrong", About, f"{shown(url)} is not a URL", "write it as http://host:port/metrics")
        return
    try:
        page = fetch(url, setup, accept=f"{OPENMETRICS};version=1.0.0", token=setup.token)
    except Unreachable as error:
        yield unreachable(About, url, error.trouble)
        return
    if page.status != 200:  # noqa: PLR2004  (a status of HTTP)
        remedy = _STATUSES.get(page.status, "see the application's log")
        yield Finding("wrong", About, f"{shown(url)} answered {page.status}", remedy)
        return
    yield from _read(url, page)
    yield from _native(url, setup)


def _url(setup: Setup) -> str | None:
    if setup.metrics is not None:
        return setup.metrics
    try:
        options = resolve_prometheus(None)
    except ConfigError:
        return None  # reported by another check
    if options is None or not options.port:
        return None
    host = "127.0.0.1" if options.host in ("0.0.0.0", "::", "") else options.host  # noqa: S104  (an address to ask)
    return f"http://[{host}]:{options.port}/metrics" if ":" in host else f"http://{host}:{options.port}/metrics"


def _read(url: str, page: Page) -> Iterator[Finding]:
    if not page.content_type.startswith(OPENMETRICS):
        kind = page.content_type.partition(";")[0] or "no content type"
        text = f"{shown(url)} answered {kind} to a request for OpenMetrics, so there are no exemplars"
        yield Finding("wrong", About, text, "give the URL that Pellucid serves; a proxy must keep the Accept header")
        return
    try:
        families = {family.name: family for family in text_string_to_metric_families(page.text)}  # type: ignore[no-untyped-call]
    except (ValueError, KeyError, IndexError):
        yield Finding("wrong", About, f"{shown(url)} is not valid OpenMetrics", "look which collector writes it")
        return
    yield Finding("ok", About, f"{shown(url)} is valid OpenMetrics with {len(families)} families")
    yield from _families(families)


def _families(families: Mapping[str, Family]) -> Iterator[Finding]:
    expected = {to_name(metric.name, metric.unit, metric.kind)[0]: metric for metric in ALL_METRICS}
    present = {name: families[name] for name in expected if name in families and families[name].samples}
    if not present:
        remedy = "run an agent, in this process and with this configuration, and ask again"
        yield Finding("wrong", About, "there is none of Pellucid's families", remedy)
        return
    yield Finding("ok", About, f"{len(present)} of Pellucid's {len(expected)} families have samples")
    hubs = present.get(_name(semconv.DISCOVERY_DURATION))
    if hubs is None:
        yield Finding("note", About, "no tool provider was called yet: alerts on hubs have no data")
    yield from _overflows(families)
    yield _exemplars([family for name, family in present.items() if expected[name].kind == "histogram"], families)


def _overflows(families: Mapping[str, Family]) -> Iterator[Finding]:
    """Report metrics with more label sets than their limit."""
    [(label, _)] = to_labels({OVERFLOW: True})
    names = [name for name, family in families.items() if any(label in sample.labels for sample in family.samples)]
    if names:
        text = (
            f"{len(names)} metrics have reached their limit of series, such as {names[0]}: further label sets share one"
        )
        yield Finding("wrong", About, text, "raise MetricLimits(series=), or make fewer by its tools= or without=")


def _exemplars(histograms: Sequence[Family], families: Mapping[str, Family]) -> Finding:
    given = [sample.exemplar for family in histograms for sample in family.samples if sample.exemplar is not None]
    if any("trace_id" in exemplar.labels for exemplar in given):
        return Finding("ok", About, f"{len(given)} buckets have exemplars that lead to traces")
    remedy = "look at OTEL_TRACES_SAMPLER and OTEL_METRICS_EXEMPLAR_FILTER"
    if _is_busy(families):
        return Finding("wrong", About, "there are no exemplars, although runs are recent", remedy)
    return Finding("note", About, "there are no exemplars; they are served for minutes after a run", remedy)


def _is_busy(families: Mapping[str, Family]) -> bool:
    last = families.get(_name(semconv.DISCOVERY_LAST_SUCCESS))
    return last is not None and any(sample.value > time.time() - FRESH for sample in last.samples)


def _native(url: str, setup: Setup) -> Iterator[Finding]:
    accept = f"{PROTOBUF};proto=io.prometheus.client.MetricFamily;encoding=delimited,*/*;q=0.1"
    try:
        page = fetch(url, setup, accept=accept, token=setup.token)
    except Unreachable as error:
        yield unreachable(About, url, error.trouble)
        return
    if page.content_type.startswith(PROTOBUF):
        yield Finding("ok", About, "it speaks protobuf too, for native histograms")
    else:
        yield Finding("note", About, "it does not speak protobuf: Prometheus gets no native histograms from it")


def _name(metric: semconv.Metric) -> str:
    return to_name(metric.name, metric.unit, metric.kind)[0]
