"""Cost of reading a whole store: CPU of `pellucid store export`, a span.

`make bench WHAT=export` prints it, for the spans of real runs (see `bench.store`) with a text of their own in each.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.store import BATCH, Ingestion, Replay
from pellucid import semconv
from pellucid_commands.store.lines import exported
from pellucid_commands.store.parquet import write_parquet
from pellucid_commands.store.writing import write_lines
from pellucid_exporters.local.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def fill(path: Path, spans: int) -> int:
    """Fill a store with runs whose model calls have answers of 1,000 characters; return how many spans it has."""
    ingestion, replay = Ingestion(path), Replay()
    while ingestion.spans < spans:
        runs = [replay.run() for _ in range(BATCH)]
        for span in (span for run in runs for span in run):
            own: Mapping[str, Any] = span.attributes or {}
            if semconv.OUTPUT_MESSAGES in own:
                text = f"{own[semconv.OUTPUT_DIGEST]} lorem ipsum " * 20
                span._attributes = {**own, semconv.OUTPUT_MESSAGES: text}
        ingestion.write(runs)
    ingestion.close()
    return ingestion.spans


def cost(work: Callable[[Iterator[dict[str, Any]]], Any], path: Path, spans: int) -> float:
    """Return microseconds of CPU a span."""
    gc.collect()
    gc.freeze()  # what filled the store
    before = time.process_time()
    with Snapshot(path) as reader:
        work(exported(reader))
    return (time.process_time() - before) / spans * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=50_000, help="in the store (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        spans = fill(path, options.spans)
        for name, work in (
            ("read", lambda lines: Counter(line["type"] for line in lines)),
            ("as JSON Lines", lambda lines: write_lines(lines, Path(folder) / "lines.jsonl")),
            ("as Parquet", lambda lines: write_parquet(lines, Path(folder) / "tables")),
        ):
            best = min(cost(work, path, spans) for _ in range(3))
            print(f"{name}, µs of CPU a span, of {spans:,}".ljust(60), f"{best:20.1f}")


if __name__ == "__main__":
    main()
