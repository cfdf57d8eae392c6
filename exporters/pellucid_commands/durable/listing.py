"""`pellucid durable list`, `calls` and `events`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, get_args

from pellucid.durable import CallKind
from pellucid.durable.states.bodies import call_json, overview_json
from pellucid.durable.store.overviews import MAX_LISTED, STATUSES
from pellucid.errors import UnknownRun
from pellucid_commands.durable.ids import short, whole_run_id
from pellucid_commands.durable.options import REFUSED, RUN_HELP, add_shared, identifier, opened
from pellucid_commands.durable.words import clock, error, no_run
from pellucid_commands.durations import duration
from pellucid_commands.inspection.options import positive
from pellucid_commands.inspection.output import flat, say, say_json, table

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid.durable import CallRecord, RunOverview

_TITLES: Final = ("RUN", "SUBMITTED", "AGENT", "STATUS", "PASS", "WAITS FOR", "WORKER", "TRIES", "ERROR")
_RIGHT: Final = ("PASS", "WAITS FOR", "TRIES")
_CALL_TITLES: Final = ("CALL", "RUN", "TOOL", "SINCE", "UNTIL", "SENT", "HEARTBEAT")
_FILTERS: Final = ("status", "agent", "older_than", "worker", "key", "text")


def add_list(parser: ArgumentParser) -> None:
    """Declare the options of `list`."""
    parser.add_argument("--status", choices=STATUSES, help="of this status; open: that have not ended")
    parser.add_argument("--agent", metavar="NAME", help="of this agent")
    parser.add_argument("--older-than", type=duration, metavar="TIME", help="submitted so long ago: 90, 10m, 12h, 30d")
    parser.add_argument("--worker", metavar="NAME", help="that this worker holds")
    parser.add_argument("--key", help="with this idempotency key")
    parser.add_argument("--text", help="with this text in their id, key, input or error, in any case of letters")
    parser.add_argument("--cursor", help="continue after a page")
    parser.add_argument("--limit", type=positive, default=20, metavar="N", help="default: %(default)s, the newest")
    add_shared(parser)


async def list_runs(options: Namespace) -> int:
    """Print runs; 1 if none is asked for."""
    found: list[RunOverview] = []
    cursor = options.cursor
    filters = {name: getattr(options, name) for name in _FILTERS}
    async with opened(options) as (_, runs):
        while True:  # a page may have few runs and yet a cursor
            missing = min(options.limit - len(found), MAX_LISTED)
            page = await runs.list(**filters, cursor=cursor, limit=missing)
            found, cursor = [*found, *page.runs], page.cursor
            if cursor is None or len(found) == options.limit:
                break
    if options.json:
        say_json({"runs": [overview_json(run) for run in found], "cursor": cursor})
    elif found:
        say(*table(_TITLES, map(_cells, found), right=_RIGHT))
        if cursor is not None:
            say(f"there are more: --cursor {cursor}")
    else:
        say("no run matches")
    return 0 if found else REFUSED


def _cells(run: RunOverview) -> tuple[str, ...]:
    return (
        short(run.run_id),
        clock(run.created_at),
        run.agent,
        run.status,
        str(run.passes),
        str(run.pending or ""),
        run.worker or "",
        str(run.attempts or ""),
        error(run.last_error_type, run.last_error),
    )


def add_calls(parser: ArgumentParser) -> None:
    """Declare the options of `calls`."""
    parser.add_argument("--tool", metavar="NAME", help="of this tool")
    parser.add_argument("--kind", choices=get_args(CallKind), help="for a result from elsewhere, or for a person")
    parser.add_argument("--limit", type=positive, default=20, metavar="N", help="default: %(default)s, the oldest")
    add_shared(parser)


async def calls(options: Namespace) -> int:
    """Print the calls that runs wait for; 1 if there is none."""
    async with opened(options) as (_, runs):
        found = await runs.waiting_calls(tool=options.tool, kind=options.kind, limit=options.limit)
    if options.json:
        say_json({"calls": [{"runId": call.run_id, "kind": call.kind, **call_json(call)} for call in found]})
    elif found:
        say(*table(_CALL_TITLES, map(_call_cells, found)))
    else:
        say("no run waits for such a call")
    return 0 if found else REFUSED


def _call_cells(call: CallRecord) -> tuple[str, ...]:
    is_unsent = call.kind == "external" and call.dispatched_at is None
    return (
        short(call.id),
        short(call.run_id),
        call.tool,
        clock(call.created_at),
        clock(call.expires_at) if call.expires_at is not None else "",
        "never" if is_unsent else clock(call.dispatched_at) if call.dispatched_at is not None else "",
        clock(call.heartbeat_at) if call.heartbeat_at is not None else "",
    )


def add_events(parser: ArgumentParser) -> None:
    """Declare the options of `events`."""
    parser.add_argument("run", type=identifier, metavar="RUN", help=RUN_HELP)
    parser.add_argument("--after", type=positive, default=0, metavar="SEQ", help="only later ones")
    parser.add_argument("--follow", action="store_true", help="wait for more until the run has ended")
    add_shared(parser)


async def events(options: Namespace) -> int:
    """Print the events of a run, each in a line; 1 if there is no such run."""
    async with opened(options) as (store, runs):
        run_id, after = await whole_run_id(store, options.run), options.after
        while True:
            try:
                page = await runs.event_page(run_id, after)
            except UnknownRun:
                return no_run(options)
            for event in page.events:
                after = event.seq
                if options.json:
                    print(json.dumps({"seq": event.seq, "time": event.time, "type": event.type, **event.data}))
                else:
                    say(f"{event.seq:>6}  {clock(event.time)}  {event.type:<22}  {_facts(event.data)}".rstrip())
            if page.is_over or not (page.has_more or options.follow):
                return 0
            if not page.has_more:
                await runs.wait_for_events(run_id, after, 60)


def _facts(data: Any) -> str:
    return flat(
        " ".join(f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in data.items())
    )
