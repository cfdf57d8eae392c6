"""The `store` subcommand: statistics, compaction and export of the local store."""

from __future__ import annotations

import json
import math
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.cli import Command
from pellucid_commands.store.lines import exported
from pellucid_commands.store.parquet import write_parquet
from pellucid_commands.store.writing import json_line, write_lines
from pellucid_exporters.local.maintenance import compact, statistics
from pellucid_exporters.local.options import DEFAULT_PATH, SMALLEST
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.local.snapshot import Snapshot

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

DAY: Final = 86_400


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the subcommands of `pellucid store`."""
    actions = parser.add_subparsers(title="actions", metavar="stats | compact | export | import", required=True)
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
    described = "Write runs, spans, events, log lines and catalogues as JSON Lines, the newest run first."
    export = actions.add_parser("export", help=described, description=described)
    export.add_argument(
        "--run",
        metavar="ID",
        help="only this run, those nested in it, and those that it continued: its id, a prefix of it, or its trace id",
    )
    target = export.add_mutually_exclusive_group()
    target.add_argument(
        "--output", type=Path, metavar="FILE", help="to a file for its owner only (default: standard output)"
    )
    target.add_argument(
        "--parquet", type=Path, metavar="FOLDER", help="as files of Parquet, by day; needs pellucid[parquet]"
    )
    export.set_defaults(act=_export)
    described = "Add the telemetry of other stores, of exports and recordings in JSON Lines, and of OTLP in JSON."
    importing = actions.add_parser("import", help=described, description=described)
    importing.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what to import; again does no harm")
    importing.set_defaults(act=_import)
    for action in (stats, compaction, export, importing):
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
    with Snapshot(options.store) as reader:
        lines = exported(reader, options.run)
        if options.parquet is not None:
            for path, count in write_parquet(lines, options.parquet).items():
                print(f"{path}: {count:,} rows")
        elif options.output is not None:
            write_lines(lines, options.output)
        else:
            for line in lines:
                print(json_line(line).decode(), end="")
    return 0


def _import(options: Namespace) -> int:
    from pellucid_commands.store.imports.files import import_file

    for file in options.files:
        found = import_file(file, options.store)
        print(f"{file}: {found.runs:,} runs, {found.spans:,} spans and {found.events:,} events imported")
        if found.log_lines:
            print(f"{file}: {found.log_lines:,} log lines imported")
        if found.there:
            print(f"{file}: {found.there:,} spans, events and log lines were there already")
        if found.left_out:
            print(f"{file}: {found.left_out:,} spans under way are left out; import it again when they have ended")
        if found.unwanted:
            reason = "they belong to no run in the store, or repeat what spans say"
            print(f"{file}: {found.unwanted:,} log records are left out: {reason}")
    return 0


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
    help="Show, compact, export or fill the local store of telemetry.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid store stats",
        "pellucid store compact --max-age 30 --max-bytes 500000000",
        "pellucid store export --output telemetry.jsonl",
        "pellucid store export --run 96c287f9 --parquet tables",
        "pellucid store import spans.json ../other/.pellucid/telemetry.db",
    ),
)
