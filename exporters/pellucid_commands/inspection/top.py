"""The `top` subcommand: alerts, hubs and runs as they are now."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pellucid.cli import Command
from pellucid_commands.inspection.documents import alert_document, hub_document
from pellucid_commands.inspection.options import add_kind, add_store_options, amount, kind_of, positive
from pellucid_commands.inspection.output import cut, flat, say, say_json, table
from pellucid_commands.inspection.runs import SHOWN, run_table
from pellucid_exporters.local.reader import StoreReader
from pellucid_exporters.stored import text
from pellucid_exporters.stored.alerts import Alert, evaluate
from pellucid_exporters.stored.documents import run_document, span_document
from pellucid_exporters.stored.hub_states import is_delayed, severity_of, state_of
from pellucid_exporters.stored.rows import RUNNING, HubRow, RunRow, SpanRow

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

MOST_ROWS: Final = 15
_MINUTE: Final = 60 * 10**9
_CLEAR: Final = "\x1b[H\x1b[2J\x1b[3J"
_HUB_TITLES: Final = ("HUB", "P50", "P95", "P99", "OBJECTIVE", "CALLS", "FAILED", "IN FLIGHT", "")
_HUB_RIGHT: Final = ("P50", "P95", "P99", "OBJECTIVE", "CALLS", "FAILED", "IN FLIGHT")
_OLDEST: Final = 1.0
"""Seconds after which the ages on the screen are drawn again although nothing was written."""


@dataclass(frozen=True, slots=True)
class State:
    """Current state of a store."""

    now: int
    alerts: list[Alert]
    hubs: list[HubRow]
    in_flight: list[SpanRow]
    running: list[RunRow]
    latest: list[RunRow]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid top`."""
    parser.add_argument("--once", action="store_true", help="print once and end; exit code 1 if an alert fires")
    parser.add_argument(
        "--window", type=positive, default=60, metavar="MINUTES", help="of the hubs' figures (default: %(default)s)"
    )
    parser.add_argument(
        "--interval", type=amount, default=0.5, metavar="SECONDS", help="between two looks (default: %(default)s)"
    )
    parser.add_argument("--replays", action="store_true", help="list replays among the runs, too")
    add_kind(parser)
    add_store_options(parser)


def run(options: Namespace) -> int:
    """Show the store until an interrupt, or once: with `--once` or `--json`, or if the output is no terminal.

    Raises:
        StoreError: there is no store that this version can use.
    """
    reader = StoreReader(options.store)
    if options.json or options.once or not sys.stdout.isatty():
        state = read(reader, options.window, replays=options.replays, kind=kind_of(options))
        if options.json:
            say_json(_document(state))
        else:
            say(*screen(state, options.window))
        return 1 if state.alerts else 0
    _watch(reader, options)
    return 0


def _watch(reader: StoreReader, options: Namespace) -> None:
    drawn, at = -1, 0.0
    while True:
        changes = reader.changes()
        if changes != drawn or time.monotonic() - at >= _OLDEST:
            state = read(reader, options.window, replays=options.replays, kind=kind_of(options))
            lines = list(screen(state, options.window))
            sys.stdout.write(_CLEAR)
            say(*lines)
            sys.stdout.flush()
            drawn, at = changes, time.monotonic()
        time.sleep(max(options.interval, 0.05))


def read(reader: StoreReader, window: int, *, replays: bool, kind: str) -> State:
    """Return what a store says now; figures of hubs are of the last minutes."""
    now = time.time_ns()
    return State(
        now=now,
        alerts=evaluate(reader, now),
        hubs=reader.hubs(now - window * _MINUTE, now),
        in_flight=reader.in_flight(),
        running=reader.runs(outcome=RUNNING, replays=replays, kind=kind, limit=MOST_ROWS),
        latest=reader.runs(replays=replays, kind=kind, limit=MOST_ROWS),
    )


def _advice(alert: Alert) -> str:
    """Return the command that prints what to do."""
    hub = f" --hub {shlex.quote(flat(alert.provider_id))}" if alert.provider_id else ""
    return f"pellucid runbook {alert.name}{hub}"


def screen(state: State, window: int) -> Iterator[str]:
    """Yield the lines of the screen."""
    counts = f"{_counted(state.running, 'run')} under way, {_counted(state.alerts, 'alert')}"
    yield cut(f"pellucid top  {text.clock(state.now)}  {counts}")
    for alert in state.alerts:
        yield cut(f"{alert.severity.upper():<6}  {flat(alert.summary)}  {_advice(alert)}")
    yield ""
    hubs = sorted(state.hubs, key=lambda hub: severity_of(hub, state_of(hub, hub.in_flight_since, state.now)))
    cells = [_hub_cells(hub, state.now) for hub in hubs]
    yield from table(_HUB_TITLES, cells, right=_HUB_RIGHT, names=("HUB",), spare=("P99", "P50", "OBJECTIVE"))
    if not state.hubs:
        yield f"no hub was asked in the last {window} min"
    if state.in_flight:
        yield ""
        titles, cells = ("IN FLIGHT", "FOR", "RUN"), [_boundary_cells(span) for span in state.in_flight[:MOST_ROWS]]
        yield from table(titles, cells, right=("FOR",), names=("IN FLIGHT",))
        yield from _more(len(state.in_flight))
    for title, runs in (("under way", state.running), ("latest", _ended(state.latest))):
        if runs:
            yield from ("", f"runs {title}", *run_table(runs))


def _counted(items: Sized, noun: str) -> str:
    return f"{len(items)} {noun}{'s' if len(items) != 1 else ''}"


def _ended(runs: list[RunRow]) -> list[RunRow]:
    return [run for run in runs if run.status != RUNNING]


def _hub_cells(hub: HubRow, now: int) -> tuple[str, ...]:
    since = hub.in_flight_since
    state = state_of(hub, since, now)
    remarks = [*([state.upper()] if state != "ok" else []), *(["the process was busy"] if is_delayed(hub) else [])]
    return (
        hub.provider_id,
        text.quantile(hub.p50),
        text.quantile(hub.p95),
        text.quantile(hub.p99),
        text.seconds(hub.objective),
        text.count(hub.calls),
        text.count(hub.failures),
        text.duration(now - since) if since is not None else text.UNKNOWN,
        ", ".join(remarks),
    )


def _boundary_cells(span: SpanRow) -> tuple[str, ...]:
    return span.name, text.age(span.start), span.run_id[:SHOWN]


def _more(number: int) -> Iterator[str]:
    if number > MOST_ROWS:
        yield f"… {number - MOST_ROWS} more"


def _document(state: State) -> dict[str, Any]:
    return {
        "time": state.now,
        "alerts": [alert_document(alert) for alert in state.alerts],
        "hubs": [hub_document(hub, state.now) for hub in state.hubs],
        "in_flight": [span_document(span) for span in state.in_flight],
        "running": [run_document(run) for run in state.running],
        "latest": [run_document(run) for run in state.latest],
    }


COMMAND: Final = Command(
    name="top",
    help="Watch the local store: alerts, hubs, what is in flight, and runs.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid top",
        "pellucid top --window 10 --interval 2",
        "pellucid top --once --json",
    ),
)
