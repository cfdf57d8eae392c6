"""Parquet files of an export, by type of line and by day, for DuckDB, pandas and other readers."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pellucid.errors import ConfigError
from pellucid_commands.store.writing import private
from pellucid_exporters.local.database import PRIVATE_FOLDER
from pellucid_exporters.plain_json import plain_json
from pellucid_exporters.stored.log_lines import LogLineRow
from pellucid_exporters.stored.rows import DERIVED, EventRow, RunRow, SpanRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

BATCH: Final = 5_000
"""Lines of one type that are kept in memory before they are written."""

_TIME, _TEXT, _TEXTS, _INT, _FLOAT, _BOOL, _JSON = "time", "text", "texts", "int", "float", "bool", "json"
_TIMES: Final = frozenset({"start", "end", "time", "seen_until"})
_TYPES: Final = {"str": _TEXT, "int": _INT, "float": _FLOAT, "bool": _BOOL, "tuple[str, ...]": _TEXTS}


def _columns(kind: type[RunRow | SpanRow | EventRow | LogLineRow]) -> dict[str, str]:
    """Return the columns of a row; what varies in shape is JSON."""
    return {
        field.name: _TIME if field.name in _TIMES else _TYPES.get(str(field.type).removesuffix(" | None"), _JSON)
        for field in fields(kind)
        if field.name not in DERIVED
    }


COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    "run": _columns(RunRow),
    "span": _columns(SpanRow),
    "event": _columns(EventRow),
    "log": _columns(LogLineRow),
    "catalog": {"digest": _TEXT, "provider_id": _TEXT, "tools": _JSON},
}
"""Columns by type of line. Times are UTC, in microseconds, which all readers know."""


def write_parquet(lines: Iterable[Mapping[str, Any]], folder: Path) -> dict[Path, int]:
    """Write the lines of an export, such as `spans/day=2026-05-04/of-runs.parquet`, and `catalogs.parquet`.

    What belongs to a run is in the day on which the run began, together and in order; the rest is in
    `of-no-run.parquet`. Days are those of UTC. Files are for their owner only.

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
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        with ExitStack() as stack:
            tables = _Tables(pa, parquet, folder, stack)
            for line in lines:
                tables.add(line)
            tables.flush()
            return tables.counts
    except OSError as error:
        raise ConfigError(f"--parquet {folder}: cannot be written to ({error})") from error


class _Place(NamedTuple):
    """Files of some kinds of lines of one day, with one name."""

    day: str
    name: str
    kinds: tuple[str, ...]


class _Tables:
    """Files that are being written: those of the day at hand, since runs come in the order of their days."""

    def __init__(self, pa: Any, parquet: Any, folder: Path, stack: ExitStack) -> None:
        self.counts: dict[Path, int] = {}
        self._pa, self._parquet, self._folder = pa, parquet, folder
        self._schemas = {kind: _schema(pa, columns) for kind, columns in COLUMNS.items()}
        self._stack = stack
        self._day = stack.enter_context(ExitStack())
        self._place: _Place | None = None
        self._writers: dict[Path, Any] = {}
        self._paths = {"catalog": folder / "catalogs.parquet"}
        self._waiting: dict[str, list[Mapping[str, Any]]] = {"catalog": []}
        self.counts[self._paths["catalog"]] = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line."""
        kind = line["type"]
        if kind != "catalog" and (place := self._place_of(line)) != self._place:
            self.flush()
            self._place = place
            for each in place.kinds:
                self._paths[each] = self._folder / f"{each}s" / f"day={place.day}" / place.name
                self._waiting[each] = []
                self.counts[self._paths[each]] = 0
        rows = self._waiting.setdefault(kind, [])
        rows.append(line)
        if len(rows) >= BATCH:
            self._write(kind)

    def flush(self) -> None:
        """Write what is kept, and close the files of the day."""
        for kind in list(self._waiting):
            self._write(kind)
        self._day.close()
        self._writers = {path: writer for path, writer in self._writers.items() if writer.is_open}

    def _place_of(self, line: Mapping[str, Any]) -> _Place:
        """Return the place of a line: of what belongs to a run, that of the run, which came before it."""
        kind = line["type"]
        if kind != "run" and line["run_id"] and self._place is not None:
            return self._place
        day = str(datetime.fromtimestamp(line.get("start", line.get("time", 0)) // 10**9, UTC).date())
        if kind == "run":  # files of each kind, so that queries over all of them find some
            return _Place(day, "of-runs.parquet", ("run", "span", "event", "log"))
        return _Place(day, "of-no-run.parquet", (kind,))

    def _write(self, kind: str) -> None:
        rows, path, schema = self._waiting.pop(kind), self._paths[kind], self._schemas[kind]
        columns = [
            self._pa.array(_values([row.get(name) for row in rows], form), schema.field(name).type)
            for name, form in COLUMNS[kind].items()
        ]
        self._writer(path, kind).write_table(self._pa.Table.from_arrays(columns, schema=schema))
        self.counts[path] += len(rows)

    def _writer(self, path: Path, kind: str) -> Any:
        if path not in self._writers:
            stack = self._stack if kind == "catalog" else self._day
            path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
            file = stack.enter_context(private(path))
            writer = self._parquet.ParquetWriter(file, self._schemas[kind], compression="zstd")
            self._writers[path] = stack.enter_context(writer)
        return self._writers[path]


def _schema(pa: Any, columns: Mapping[str, str]) -> Any:
    types = {
        _TIME: pa.timestamp("us", tz="UTC"),
        _TEXT: pa.string(),
        _TEXTS: pa.list_(pa.string()),
        _INT: pa.int64(),
        _FLOAT: pa.float64(),
        _BOOL: pa.bool_(),
        _JSON: pa.string(),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


def _values(values: list[Any], form: str) -> list[Any]:
    if form == _TIME:
        return [value // 1_000 if value is not None else None for value in values]
    if form == _JSON:
        return [plain_json(value).decode() if value is not None else None for value in values]
    return values
