"""`pellucid durable workers`: which workers there are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pellucid_commands.durable.options import REFUSED, add_shared, opened
from pellucid_commands.durable.words import since
from pellucid_commands.inspection.output import say, say_json, table

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid.durable import WorkerRecord

_TITLES: Final = ("WORKER", "VERSION", "SLOTS", "STARTED", "SEEN", "DRAINS", "AGENTS")


def add_workers(parser: ArgumentParser) -> None:
    """Declare the options of `workers`."""
    add_shared(parser)


async def workers(options: Namespace) -> int:
    """Print the workers of all processes; 1 if there is none."""
    async with opened(options) as (store, runs):
        found, now = await runs.workers(), await store.now()
    if options.json:
        say_json({"now": now, "workers": [_document(worker) for worker in found]})
    elif found:
        say(*table(_TITLES, [_cells(worker, now) for worker in found], right=("SLOTS",)))
    else:
        say("there is no worker; start one: pellucid worker MODULE:NAME")
    return 0 if found else REFUSED


def _cells(worker: WorkerRecord, now: float) -> tuple[str, ...]:
    return (
        worker.name,
        worker.version or "",
        str(worker.slots),
        since(worker.started_at, now),
        since(worker.seen_at, now),
        "yes" if worker.drain_requested_at is not None else "",
        ", ".join(worker.agents),
    )


def _document(worker: WorkerRecord) -> dict[str, object]:
    return {
        "name": worker.name,
        "version": worker.version,
        "agents": list(worker.agents),
        "slots": worker.slots,
        "startedAt": worker.started_at,
        "seenAt": worker.seen_at,
        "drainRequestedAt": worker.drain_requested_at,
    }
