"""Helpers for tests of the local store."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pellucid_exporters.options import Prometheus, Settings, resolve_local
from pellucid_exporters.pipeline import build
from support.openmetrics import scrape
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pellucid_exporters import Local, Telemetry


@contextmanager
def storing(local: Local | Path, **settings: Any) -> Iterator[Telemetry]:
    """Give telemetry that writes to a store, and counts at `/metrics`."""
    given = {"service_name": "shop", "prometheus": Prometheus(port=0), **settings}
    telemetry = build(Settings(local=resolve_local(local), **given))
    try:
        yield telemetry
    finally:
        telemetry.shutdown()


def emit(telemetry: Telemetry, *names: str, **attributes: Any) -> None:
    """End spans that are none of Pellucid's."""
    tracer = telemetry.tracer_provider.get_tracer("test")
    for name in names:
        tracer.start_span(name, attributes=attributes).end()


def counted(telemetry: Telemetry, what: str) -> float:
    """Read how many `errors` of the store, or items `dropped` by it, are at `/metrics`."""
    family = scrape(telemetry.prometheus_url).get(f"pellucid_telemetry_{what}")
    samples = family.samples if family is not None else []
    return sum(sample.value for sample in samples if sample.labels["pellucid_telemetry_part"] == "local")


def eventually(condition: Callable[[], Any]) -> Any:
    """Return the first value of a condition that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value
