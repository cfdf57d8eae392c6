"""Stores of many runs, written as rows: they have no spans."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from pellucid_exporters.local.text_index import add_due
from support.local_store import storing

if TYPE_CHECKING:
    from pathlib import Path

DAY: Final = 86_400 * 10**9
_COLUMNS: Final = (
    *("run_id", "trace_id", "agent", "process", "start", "last", "ended", "outcome", "error_type", "error"),
    *("iterations", "spans", "input_tokens", "output_tokens", "cost", "question", "answer", "user", "tenant"),
    *("conversation", "version", "faults", "used_input", "used_output", "used_cost", "used_cached"),
)
_INSERT: Final = f"INSERT INTO runs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"


def write_runs(path: Path, number: int, days: float = 30.0, until: int | None = None) -> None:
    """Create a store of runs that are evenly spread over some days up to now, or up to a time."""
    with storing(path):
        pass
    seed = random.Random(7)
    end = until if until is not None else time.time_ns()
    step = int(days * DAY) // number
    with closing(sqlite3.connect(path)) as connection:
        (process,) = connection.execute(
            "INSERT INTO processes (token, service, host, pid, heartbeat, ended) VALUES ('t', 'shop', 'h', 1, 1, 1) "
            "RETURNING id"
        ).fetchone()
        for place in range(number):
            row = _row(seed, place, process, end - (number - place) * step)
            key = connection.execute(_INSERT, row).lastrowid
            parts = [("model", f"model-{place % 2}"), ("tool", f"tool-{place % 9}"), ("hub", "search")]
            if place % 997 == 0:
                parts.append(("tool", "rare"))
            value = 0 if place % 499 == 0 else 1 - place % 3 / 8
            payload = json.dumps({"score": "correct", "value": value, "label": "pass" if value else "fail"}).encode()
            connection.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, 'score.recorded', ?, ?)",
                (key, row[4] + 1, process, place, bytes(8), payload),
            )
            connection.executemany("INSERT INTO parts VALUES (?, ?, ?)", [(key, *part) for part in parts])
        add_due(connection)
        connection.commit()


def _row(seed: random.Random, number: int, process: int, start: int) -> tuple[Any, ...]:
    took = int(seed.lognormvariate(0, 1) * 1e9)
    is_failed = number % 37 == 5
    failure = ("ModelError", "the vendor answered 529: overloaded") if is_failed else (None, None)
    asked = f"What does scarf {number} of order A-{number * 7} cost?"
    answered = None if is_failed else f"It costs {number % 100} euros."
    return (
        *(f"{seed.getrandbits(128):032x}", number.to_bytes(16, "big"), f"agent-{number % 4}", process),
        *(start, start + took, start + took, "failed" if is_failed else "completed", *failure),
        *(2, 0, 1000 + number % 300, 50, round(seed.random() * 0.02, 5), asked, answered),
        *(f"user-{number % 500}", f"tenant-{number % 20}", f"c-{number // 3}", str(number % 3), int(number % 11 == 0)),
        *(0, 0, 0.0, 0),
    )
