"""Import of a file, whichever kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid.errors import ConfigError
from pellucid_commands.store.imports.log_records import import_log_records
from pellucid_commands.store.imports.otlp import import_otlp
from pellucid_commands.store.imports.otlp_json import SIGNS
from pellucid_commands.store.imports.rows import RowImport
from pellucid_commands.store.imports.target import Writers
from pellucid_exporters.file.reader import FileReader
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.local.schema import LARGEST
from pellucid_exporters.local.snapshot import Snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid_commands.store.imports.target import Imported
    from pellucid_exporters.local.hub_minutes import Objective

_SQLITE: Final = b"SQLite format 3\0"


def import_file(source: Path, store: Path) -> Imported:
    """Import a store, a recording, or OTLP in JSON, whichever a file is.

    Raises:
        ConfigError: it is none of these, or the store itself.
        StoreError: one of the two is no store that this version can use.
    """
    try:
        if store.exists() and source.samefile(store):
            raise ConfigError(f"{source}: that is the store itself; name another file")
        with source.open("rb") as file:
            start = file.read(4_096)
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read ({error.strerror})") from error
    with Writers(store) as writers:
        if start.startswith(_SQLITE):
            with Snapshot(source) as reader:
                writers.objectives = _objectives(reader, store)
                return RowImport(reader, store, writers).all()
        if any(f'"{sign}"'.encode() in start for sign in SIGNS):
            counts = import_otlp(source, store, writers)
            import_log_records(source, store, writers, counts)
            return counts
        return RowImport(FileReader(source), store, writers).all()


def _objectives(source: StoreReader, store: Path) -> dict[str, Objective]:
    """Return the objectives of the hubs of which the store has none."""
    hubs = StoreReader(store).hubs(0, LARGEST) if store.exists() else ()
    known = {hub.provider_id for hub in hubs if hub.objective is not None}
    return {
        hub.provider_id: (hub.objective, hub.slo)
        for hub in source.hubs(0, LARGEST)
        if hub.objective is not None and hub.provider_id not in known
    }
