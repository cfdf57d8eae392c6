"""Helpers for tests of the file exporter."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from pellucid_exporters.options import Prometheus, Settings, resolve_file
from pellucid_exporters.pipeline import build
from support.openmetrics import scrape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pellucid_exporters.file.options import File
    from pellucid_exporters.telemetry import Telemetry


@contextmanager
def writing_to(file: File | str | Path, **settings: Any) -> Iterator[Telemetry]:
    """Give telemetry that writes to a file, and counts at `/metrics`."""
    given = {"service_name": "shop", "prometheus": Prometheus(port=0), **settings}
    telemetry = build(Settings(file=resolve_file(file), **given))
    try:
        yield telemetry
    finally:
        telemetry.shutdown()


def emit(telemetry: Telemetry, *names: str, **attributes: Any) -> None:
    """End spans that are none of Pellucid's."""
    tracer = telemetry.tracer_provider.get_tracer("test")
    for name in names:
        tracer.start_span(name, attributes=attributes).end()


def lines(path: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the lines of a file, each of which has to be whole, strict JSON; of one type, if one is named."""
    content = path.read_bytes()
    assert not content or content.endswith(b"\n")
    found = [json.loads(line.decode(), parse_constant=_refuse) for line in content.split(b"\n")[:-1]]
    return [line for line in found if kind in (None, line["type"])]


def text(path: Path) -> str:
    """Return all that is in a file."""
    return path.read_text()


def names(*paths: Path) -> list[str]:
    """Return the names of the spans in files, in their order."""
    return [line["name"] for path in paths for line in lines(path, "span")]


def put_aside(path: Path) -> list[Path]:
    """Return the files that were put aside, the oldest first."""
    return sorted(path.parent.glob(f"{path.name}.2*Z"))


def counted(telemetry: Telemetry, what: str) -> float:
    """Read how many `errors` of the file, or items `dropped` by it, are at `/metrics`."""
    family = scrape(telemetry.prometheus_url).get(f"pellucid_telemetry_{what}")
    found = [sample.value for sample in family.samples] if family is not None else []
    assert family is None or {sample.labels["pellucid_telemetry_part"] for sample in family.samples} == {"file"}
    return sum(found)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
