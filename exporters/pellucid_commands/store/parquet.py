"""Parquet files of an export: one for each type of line, for DuckDB, pandas and other readers."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from pellucid.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

BATCH: Final = 5_000
"""Lines of one type that are kept in memory before they are written."""

_TIME, _TEXT, _TEXTS, _INT, _FLOAT, _JSON = "time", "text", "texts", "int", "float", "json"

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "run": {
        "run_id": _TEXT, "trace_id": _TEXT, "parent_run_id": _TEXT, "replay_of": _TEXT, "agent": _TEXT,
        "service": _TEXT, "status": _TEXT, "start": _TIME, "end": _TIME, "iterations": _INT, "error_type": _TEXT,
        "error": _TEXT, "input_tokens": _INT, "output_tokens": _INT, "cost": _FLOAT, "models": _TEXTS, "tools": _TEXTS,
        "hubs": _TEXTS, "spans": _INT, "seen_until": _TIME, "stop_reason": _TEXT,
    },
    "span": {
        "run_id": _TEXT, "sequence": _INT, "trace_id": _TEXT, "span_id": _TEXT, "parent_span_id": _TEXT, "name": _TEXT,
        "kind": _TEXT, "phase": _TEXT, "iteration": _INT, "start": _TIME, "end": _TIME, "status": _TEXT,
        "error_type": _TEXT, "error": _TEXT, "attributes": _JSON, "events": _JSON, "links": _JSON, "seen_until": _TIME,
    },
    "event": {"run_id": _TEXT, "time": _TIME, "name": _TEXT, "span_id": _TEXT, "payload": _JSON},
    "catalog": {"digest": _TEXT, "provider_id": _TEXT, "tools": _JSON},
}  # fmt: skip
"""Columns by type of line. Times are UTC, in microseconds, which all readers know; what varies in shape is JSON."""


def write_parquet(lines: Iterable[Mapping[str, Any]], folder: Path) -> dict[str, int]:
    """Write the lines of an export to `runs.parquet`, `spans.parquet`, `events.parquet` and `catalogs.parquet`.

    Returns:
        The number of rows by file.

    Raises:
        ConfigError: pyarrow is not installed, or the folder cannot be written to.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ConfigError("--parquet needs pyarrow, which is not installed: pip install 'pellucid[parquet]'") from error
    schemas = {kind: _schema(pa, columns) for kind, columns in COLUMNS.items()}
    counts = dict.fromkeys((f"{kind}s.parquet" for kind in COLUMNS), 0)
    waiting: dict[str, list[dict[str, Any]]] = defaultdict(list)
    with ExitStack() as files:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            writers = {
                kind: files.enter_context(
                    parquet.ParquetWriter(folder / f"{kind}s.parquet", schema, compression="zstd")
                )
                for kind, schema in schemas.items()
            }

            def write(kind: str) -> None:
                writers[kind].write_table(pa.Table.from_pylist(waiting.pop(kind, []), schema=schemas[kind]))

            for line in lines:
                kind = line["type"]
                waiting[kind].append(_row(line, COLUMNS[kind]))
                counts[f"{kind}s.parquet"] += 1
                if len(waiting[kind]) >= BATCH:
                    write(kind)
            for kind in COLUMNS:
                write(kind)
        except OSError as error:
            raise ConfigError(f"--parquet {folder}: cannot be written to ({error})") from error
    return counts


def _schema(pa: Any, columns: Mapping[str, str]) -> Any:
    types = {
        _TIME: pa.timestamp("us", tz="UTC"),
        _TEXT: pa.string(),
        _TEXTS: pa.list_(pa.string()),
        _INT: pa.int64(),
        _FLOAT: pa.float64(),
        _JSON: pa.string(),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def _row(line: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    return {name: _value(line.get(name), kind) for name, kind in columns.items()}


def _value(value: Any, kind: str) -> Any:
    if value is None or kind not in {_JSON, _TIME}:
        return value
    return value // 1_000 if kind == _TIME else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
