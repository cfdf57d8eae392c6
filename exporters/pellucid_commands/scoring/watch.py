"""`pellucid score watch`: what is watched, what is said about it, and what is received by OTLP."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from pellucid.errors import ConfigError
from pellucid.scores.scoring import name_of
from pellucid.text import clean
from pellucid_commands.inspection.output import say
from pellucid_commands.receiving.listening import Listener, listening
from pellucid_commands.receiving.target import ReceivedStore, create_store
from pellucid_commands.scoring.arrivals import QUIET, Arrivals
from pellucid_commands.scoring.claims import Claims
from pellucid_commands.scoring.output import cells, document, telemetry_of
from pellucid_commands.scoring.recording import Recorder
from pellucid_commands.scoring.watching import LEASE, Watch
from pellucid_exporters.local.reader import StoreReader

if TYPE_CHECKING:
    from argparse import Namespace

    from pellucid.scores import Score, Scorer
    from pellucid_exporters.stored.rows import RunRow


def watch(options: Namespace, scorers: Sequence[Scorer]) -> int:
    """Score runs as they end, and return the exit code.

    Raises:
        ConfigError: OTLP cannot be taken at the address.
        StoreError: there is no store that this version can use.
    """
    store = Path(options.store)
    if options.listen is not None and options.once:
        raise ConfigError("--listen waits for what arrives; without --once")
    name = " ".join(sorted([*options.scorer, *filter(None, [options.agent])]))
    with ExitStack() as stack:
        listener = stack.enter_context(listening(options.listen)) if options.listen is not None else None
        if listener is not None:
            create_store(store)
        reader = StoreReader(store)
        telemetry = stack.enter_context(telemetry_of(options))
        claims = stack.enter_context(closing(Claims(store, name, LEASE)))
        arrivals = stack.enter_context(closing(Arrivals(store, name)))
        recorder = stack.enter_context(closing(Recorder(store, telemetry, is_once=True)))
        print(_introduction(options, scorers, claims.since(options.since), listener), file=sys.stderr, flush=True)
        watching = Watch(reader, scorers, claims, arrivals, recorder, options.agent, partial(_tell, options))
        if listener is None:
            anyio.run(partial(watching.run, is_once=options.once))
        else:
            received = stack.enter_context(closing(ReceivedStore(store, arrivals.note)))
            anyio.run(_receive, listener, received, watching)
    return 0


async def _receive(listener: Listener, received: ReceivedStore, watching: Watch) -> None:
    """Score what arrives until a signal ends the server."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(watching.run, is_once=False, place=received.place))
        await listener.serve(received)
        tasks.cancel_scope.cancel()


def _introduction(options: Namespace, scorers: Sequence[Scorer], since: int, listener: Listener | None) -> str:
    """Return what is watched, with which scorers, and what is waited for."""
    names = ", ".join(dict.fromkeys(map(name_of, scorers)))
    agent = f" of {options.agent}" if options.agent is not None else ""
    start = datetime.fromtimestamp(since / 1e9).astimezone().isoformat(sep=" ", timespec="seconds")
    shown = f"watching {options.store} with {names}: runs{agent} that start from {start} on, once they have ended"
    if listener is not None:
        shown += (
            f"; and what arrives at {listener.url} by OTLP, {QUIET:g} s after the last span of its trace. "
            "Metrics, and log records that are no scores, are rejected"
        )
    return clean(shown)


def _tell(options: Namespace, row: RunRow, scores: Sequence[Score]) -> None:
    for each in scores:
        if options.json:
            say(json.dumps({"run_id": row.run_id, **document(each)}))
        else:
            say("  ".join(filter(None, cells(row, each))))
