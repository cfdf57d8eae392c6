"""Private parts of OpenTelemetry's SDK: imported in one module, and a version that lacks one is noticed."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from opentelemetry.sdk.metrics import MeterProvider

from pellucid_exporters import sdk_internals
from pellucid_exporters.recorder import forks
from pellucid_exporters.recorder.providers import make_meter_provider

ROOT: Final = Path(__file__).parents[2]
UNSTABLE: Final = {"_logs", "_log_exporter"}
"""Packages of logs: they are documented, and private only until OpenTelemetry declares them stable."""


def private_imports(path: Path) -> Iterator[str]:
    """Yield the private names of OpenTelemetry that a module imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            first, *parts = name.split(".")
            if first == "opentelemetry" and any(part.startswith("_") and part not in UNSTABLE for part in parts):
                yield name


def test_one_module_imports_them() -> None:
    """No other module of the package imports a private name of OpenTelemetry; its docstring names each of them."""
    modules = [path for folder in ("sdk", "exporters", "dashboards") for path in (ROOT / folder).rglob("*.py")]
    found = {path: set(private_imports(path)) for path in modules}
    (path,) = [path for path, names in found.items() if names]
    assert path == Path(sdk_internals.__file__)
    documented = sdk_internals.__doc__ or ""
    assert [name for name in found[path] if f"`{name.rpartition('.')[2]}`" not in documented] == []


def test_an_sdk_whose_storage_cannot_be_replaced_is_noticed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Telemetry works as before, and one line says what children of a fork lack, and why."""
    monkeypatch.delattr(sdk_internals, "ExponentMapping")
    forks._is_supported.cache_clear()
    try:
        with caplog.at_level(logging.INFO):
            assert type(make_meter_provider("sdk", (), shutdown_on_exit=False)) is MeterProvider
        (line,) = [record.getMessage() for record in caplog.records if "fork" in record.getMessage()]
        assert "counts of their parent" in line
        assert "ExponentMapping" in line
    finally:
        forks._is_supported.cache_clear()
