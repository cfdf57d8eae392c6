"""Boundaries that ended in a window of time, counted by their labels."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid_exporters.local.schema import LARGEST, MEASURED
from pellucid_exporters.local.shapes import CONSTANT, FREE, PLAIN
from pellucid_exporters.stored.rows import SUMMED, CallRow

if TYPE_CHECKING:
    import sqlite3

_SUMS: Final = tuple(f"sum_{number}" for number in range(len(SUMMED)))
_WANTED: Final = f"CREATE TEMP TABLE wanted (shape INTEGER PRIMARY KEY, {', '.join(_SUMS)})"
_CALLS: Final = f"""
SELECT runs.process, service, spans.shape, (spans.start + duration - :since) / :step, json_group_array(duration),
       min(spans.start), max(spans.start + duration), run_id, span_id,
       {", ".join(f'total(json_extract(CAST("values" AS TEXT), {name}))' for name in _SUMS)}
FROM runs CROSS JOIN spans ON spans.run = runs.key CROSS JOIN wanted ON wanted.shape = spans.shape
     LEFT JOIN processes ON processes.id = runs.process
WHERE runs.last >= :since AND {MEASURED} AND spans.start + duration BETWEEN :since AND :until
GROUP BY 1, 3, 4
"""


def call_rows(
    connection: sqlite3.Connection, since: int, until: int, phases: Collection[str], step: int | None
) -> list[CallRow]:
    """Return the boundaries of some phases that ended between two times, counted by process, labels and step of time.

    Replays and runs of experiments are left out.
    """
    shapes = dict(_shapes(connection, phases))
    connection.execute("DROP TABLE IF EXISTS temp.wanted")
    connection.execute(_WANTED)
    marks = ", ".join("?" * (1 + len(SUMMED)))
    connection.executemany(f"INSERT INTO wanted VALUES ({marks})", [(key, *row[1]) for key, row in shapes.items()])
    cursor = connection.cursor()
    cursor.row_factory = None
    rows = cursor.execute(_CALLS, {"since": since, "until": until, "step": step or LARGEST})
    return [_row(shapes[shape][0], process, service, step, *rest) for process, service, shape, step, *rest in rows]


def _row(
    labels: Mapping[str, str], process: int, service: str | None, step: int, durations: str, *rest: Any
) -> CallRow:
    start, end, run_id, span_id, *sums = rest
    ordered = sorted(duration / 1e9 for duration in json.loads(durations))
    return CallRow(
        process=process,
        service=service or "",
        phase=labels[semconv.PHASE],
        labels=labels,
        calls=len(ordered),
        durations=ordered,
        sums=dict(zip(SUMMED, sums, strict=True)),
        start=start,
        end=end,
        run_id=run_id,
        span_id=span_id.hex(),
        step=step,
    )


def _shapes(
    connection: sqlite3.Connection, phases: Collection[str]
) -> Iterator[tuple[int, tuple[dict[str, str], list[str | None]]]]:
    """Yield the shapes of boundaries of some phases: labels, and places of what is summed among the values."""
    query = "SELECT id, definition FROM shapes WHERE instr(definition, ?)"
    for key, definition in connection.execute(query, (f'"{semconv.PHASE}"',)):
        name, _, _, _, marks, keys, constants = json.loads(definition)
        fixed = iter(constants)
        labels = {key: next(fixed) for mark, key in zip(marks, keys, strict=True) if mark == CONSTANT}
        if labels.get(semconv.PHASE) not in phases:
            continue
        plain = [key for mark, key in zip(marks, keys, strict=True) if mark == PLAIN]
        places = {key: f"$[{place + (name == FREE)}]" for place, key in enumerate(plain)}
        yield key, (labels, [places.get(key) for key in SUMMED])
