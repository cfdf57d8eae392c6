"""Reading `/metrics` as strictly as OpenMetrics demands."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client import Metric
    from prometheus_client.samples import Exemplar

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def fetch_bytes(url: str, accept: str) -> bytes:
    """Scrape a URL; return the answer as it came."""
    with urlopen(Request(url, headers={"Accept": accept}), timeout=60) as answer:
        body: bytes = answer.read()
        return body


def fetch(url: str | None, accept: str = OPENMETRICS) -> tuple[str, str]:
    """Scrape a URL; return the content type and the text."""
    assert url is not None
    with urlopen(Request(url, headers={"Accept": accept}), timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def scrape(source: str | CollectorRegistry | None) -> Mapping[str, Metric]:
    """Scrape a URL or a registry; return the families by name."""
    if source is None or isinstance(source, str):  # noqa: SIM108  (two lines with comments read better)
        text = fetch(source)[1]
    else:
        text = generate_latest(source).decode()  # type: ignore[no-untyped-call]  # a function without types
    return {family.name: family for family in text_string_to_metric_families(text)}  # type: ignore[no-untyped-call]  # likewise


def values(family: Metric) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples of a family by name and labels."""
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in family.samples}


def exemplars(family: Metric) -> dict[str, Exemplar]:
    """Return the exemplars of a family by the bound of their bucket, empty for counters."""
    return {sample.labels.get("le", ""): sample.exemplar for sample in family.samples if sample.exemplar is not None}
