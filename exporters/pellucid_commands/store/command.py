"""The `store` subcommand: statistics, compaction and export of the local store."""

from __future__ import annotations

import dataclasses
import json
import math
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid_commands.store.parquet import write_parquet
from pellucid_commands.store.selection import needed
from pellucid_exporters.local.maintenance import compact, statistics
from pellucid_exporters.local.options import DEFAULT_PATH, SMALLEST
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.stored.bodies import digests_in, filled

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from pellucid_exporters.stored.rows import RunRow

DAY: Final = 86_400
_PAGE: Final = 100


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the subcommands of `pellucid store`."""
    actions = parser.add_subparsers(title="actions", metavar="stats | compact | export", required=True)
    described = "Show how much is in the store."
    stats = actions.add_parser("stats", help=described, description=described)
    stats.add_argument("--json", action="store_true", help="as one JSON object")
    stats.set_defaults(act=_show)
    described = "Delete what is too old or too much, and give the space back."
    compaction = actions.add_parser("compact", help=described, description=described)
    compaction.add_argument("--max-age", type=_positive, metavar="DAYS", help="delete what is older (default: nothing)")
    compaction.add_argument(
        "--max-bytes", type=_bytes, metavar="BYTES", help="delete the oldest runs beyond this size (default: none)"
    )
    compaction.set_defaults(act=_compact)
    described = "Write runs, spans, events and catalogues to standard output as JSON Lines, the newest run first."
    export = actions.add_parser("export", help=described, description=described)
    export.add_argument(
        "--run",
        metavar="ID",
        help="only this run, those nested in it, and those that it continued: its id, a prefix of it, or its trace id",
    )
    export.add_argument(
        "--parquet",
        type=Path,
        metavar="FOLDER",
        help="as files of Parquet in a folder instead; needs pellucid[parquet]",
    )
    export.set_defaults(act=_export)
    for action in (stats, compaction, export):
        action.add_argument(
            "--store", type=Path, default=Path(DEFAULT_PATH), metavar="FILE", help=f"default: {DEFAULT_PATH}"
        )


def run(options: Namespace) -> int:
    """Do what was asked, and return the exit code.

    Raises:
        StoreError: there is no store that this version can use; the message names the remedy.
    """
    return int(options.act(options))


def _show(options: Namespace) -> int:
    found = statistics(options.store)
    if options.json:
        print(json.dumps(found))
        return 0
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:{width}}  {value:>15,}" if isinstance(value, int) else f"{name:{width}}  {value or '-':>15}")
    return 0


def _compact(options: Namespace) -> int:
    StoreReader(options.store)  # refuse what is no store
    before = statistics(options.store)
    compact(options.store, options.max_age and options.max_age * DAY, options.max_bytes)
    after = statistics(options.store)
    print(f"{before['runs'] - after['runs']:,} runs deleted, {before['bytes']:,} bytes became {after['bytes']:,}")
    return 0


def _export(options: Namespace) -> int:
    lines = _lines(StoreReader(options.store), options.run)
    if options.parquet is not None:
        for name, count in write_parquet(lines, options.parquet).items():
            print(f"{options.parquet / name}: {count:,} rows")
        return 0
    for line in lines:
        print(json.dumps(line, ensure_ascii=False))
    return 0


def _lines(reader: StoreReader, name: str | None) -> Iterator[dict[str, Any]]:
    """Yield the lines of one run with those that it needs, or of all runs and of what belongs to none."""
    written: set[str] = set()
    if name is not None:
        row = reader.run(name)
        if row is None:
            raise ConfigError(f"--run {name}: the store has no such run, or several; give the whole id")
        for each in needed(reader, row):
            yield from _lines_of(reader, _document(each), each.run_id, written)
        return
    before: int | None = None
    while rows := reader.runs(before=before, limit=_PAGE):
        for row in rows:
            yield from _lines_of(reader, _document(row), row.run_id, written)
        before = rows[-1].start
    yield from _lines_of(reader, None, "", written)


def _document(run: RunRow) -> dict[str, Any]:
    """Return the fields of a run that are its own."""
    return {name: value for name, value in dataclasses.asdict(run).items() if name != "total"}


def _lines_of(
    reader: StoreReader, run: dict[str, Any] | None, run_id: str, written: set[str]
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a run; catalogues whose digests are in `written` are left out, others are added to it."""
    if run is not None:
        yield {"type": "run", **run}
    spans = reader.spans(run_id)
    found = (span.attributes.get(semconv.CATALOG_DIGEST) for span in spans)
    digests = {digest for digest in found if isinstance(digest, str)}
    for digest, catalog in reader.catalogs(sorted(digests - written)).items():
        written.add(digest)
        yield {"type": "catalog", "digest": digest, **catalog}
    for span in spans:
        yield {"type": "span", **_whole(reader, dataclasses.asdict(span))}
    for event in reader.events(run_id):
        yield {"type": "event", **_whole(reader, dataclasses.asdict(event))}


def _whole(reader: StoreReader, record: dict[str, Any]) -> dict[str, Any]:
    """Return a record with its large texts in place."""
    digests = set(digests_in(record))
    texts = reader.bodies(digests) if digests else {}
    whole: dict[str, Any] = filled(record, texts) if digests else record
    return whole


def _bytes(text: str) -> int:
    if not text.isdecimal() or int(text) < SMALLEST:
        raise ArgumentTypeError(f"{text!r} is not a number of bytes of at least {SMALLEST:,}")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not (math.isfinite(number) and number > 0):
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


COMMAND: Final = Command(
    name="store",
    help="Show, compact or export the local store of telemetry.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid store stats",
        "pellucid store compact --max-age 30 --max-bytes 500000000",
        "pellucid store export > telemetry.jsonl",
        "pellucid store export --run 96c287f9 --parquet tables",
    ),
)
