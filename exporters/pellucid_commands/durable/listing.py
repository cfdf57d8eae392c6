"""`pellucid durable list`, `show` and `events`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, get_args

from pellucid.durable import CallKind
from pellucid.durable.states.bodies import call_json, overview_json
from pellucid.durable.store.overviews import MAX_LISTED, STATUSES
from pellucid.errors import UnknownRun
from pellucid_commands.durable.options import REFUSED, add_shared, identifier, opened
from pellucid_commands.durations import duration
from pellucid_commands.inspection.options import positive
from pellucid_commands.inspection.output import flat, say, say_json, table
from pellucid_exporters.stored import text

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid.durable import CallRecord, RunDescription, RunOverview

_TITLES: Final = ("RUN", "SUBMITTED", "AGENT", "STATUS", "PASS", "WAITS FOR", "WORKER", "TRIES", "ERROR")
_RIGHT: Final = ("PASS", "WAITS FOR", "TRIES")
_CALL_TITLES: Final = ("CALL", "RUN", "TOOL", "SINCE", "UNTIL", "SENT", "HEARTBEAT")
_FILTERS: Final = ("status", "agent", "older_than", "worker", "key", "text")
_NANO: Final = 1_000_000_000


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
        run.run_id,
        _clock(run.created_at),
        run.agent,
        run.status,
        str(run.passes),
        str(run.pending or ""),
        run.worker or "",
        str(run.attempts or ""),
        _error(run.last_error_type, run.last_error),
    )


def add_show(parser: ArgumentParser) -> None:
    """Declare the options of `show`."""
    parser.add_argument("run", type=identifier, metavar="RUN", help="id of a run")
    add_shared(parser)


async def show(options: Namespace) -> int:
    """Print where a run is, and what it waits for; 1 if there is none."""
    async with opened(options) as (_, runs):
        try:
            found = await runs.describe(options.run)
        except UnknownRun:
            return no_run(options)
    if options.json:
        say_json(_document(found))
    else:
        for line in _lines(found):
            say(line)
    return 0


def no_run(options: Namespace) -> int:
    """Say that there is no such run, and return the exit code."""
    if options.json:
        say_json({"error": "run not found"})
    else:
        say(f"the store has no run {options.run}; see: pellucid durable list")
    return REFUSED


def _document(found: RunDescription) -> dict[str, Any]:
    callback = found.callback
    journal = asdict(found.journal)
    return {
        **overview_json(found.run),
        "now": found.now,
        "waitsFor": [{"kind": call.kind, **call_json(call)} for call in found.waits_for],
        "journal": {
            "entries": journal["entries"],
            "answers": journal["answers"],
            "results": journal["results"],
            "started": [
                {"toolName": call.tool, "toolCallId": call.tool_call_id, "startedAt": call.started_at}
                for call in found.journal.started
            ],
            "size": journal["size"],
            "checkpointSize": journal["checkpoint_size"],
            "lastEntryAt": journal["last_entry_at"],
        },
        "version": found.version,
        "runsBefore": found.runs_before,
        "callback": None
        if callback is None
        else {
            "version": callback.version,
            "deliveredVersion": callback.delivered_version,
            "attempts": callback.attempts,
            "nextAt": callback.next_at,
            "deadAt": callback.dead_at,
            "lastError": callback.last_error,
        },
        "cancelReason": found.cancel_reason,
        "traceId": found.trace_id,
    }


def _lines(found: RunDescription) -> list[str]:
    run, now = found.run, found.now
    identity = run.identity
    facts = {
        "run": run.run_id,
        "agent": f"{run.agent}, version {found.version}" if found.version is not None else run.agent,
        "status": f"{run.status}, pass {run.passes}",
        "owner": "/".join(filter(None, (identity.tenant, identity.principal))) if identity is not None else "",
        "submitted": _since(run.created_at, now),
        "updated": _since(run.updated_at, now),
        "due": _until(run.due_at, now) if run.due_at is not None else "",
        "worker": f"{run.worker}, lease {_until(run.lease_until, now)}" if run.worker is not None else "",
        "expired leases": str(run.expired_leases or ""),
        "failed": f"{run.attempts} in a row, last {_since(run.failed_at, now)}" if run.attempts else "",
        "error": _error(run.last_error_type, run.last_error),
        "cancelled": found.cancel_reason or "",
        "key": run.idempotency_key or "",
        "conversation": _conversation(found),
        "journal": _journal(found),
        "callback": _callback(found),
        "trace": found.trace_id or "",
    }
    width = max(map(len, facts))
    lines = [f"{name:<{width}}  {flat(value)}" for name, value in facts.items() if value]
    lines += [f"{'started':<{width}}  {call.tool} {_since(call.started_at, now)}" for call in found.journal.started]
    return [*lines, *(f"{'waits for':<{width}}  {_call(call, now)}" for call in found.waits_for)]


def _conversation(found: RunDescription) -> str:
    if found.conversation_id is None:
        return ""
    return f"{found.conversation_id}{f', after {found.runs_before} open runs' if found.runs_before else ''}"


def _journal(found: RunDescription) -> str:
    journal = found.journal
    sizes = f"{text.size(journal.size)}, checkpoint {text.size(journal.checkpoint_size)}"
    return f"{journal.answers} answers and {journal.results} results in {journal.entries} entries, {sizes}"


def _callback(found: RunDescription) -> str:
    callback = found.callback
    if callback is None:
        return ""
    error = f": {callback.last_error}" if callback.last_error else ""
    state = "dead" if callback.dead_at is not None else "due" if callback.next_at is not None else "delivered"
    return f"{state}, {callback.attempts} attempts{error}"


def _call(call: CallRecord, now: float) -> str:
    parts = [f"{call.kind} {call.tool} {call.id}, since {_since(call.created_at, now)}"]
    if call.expires_at is not None:
        parts.append(f"until {_until(call.expires_at, now)}")
    if call.kind == "external" and call.dispatched_at is None:
        parts.append("never sent")
    if call.heartbeat_at is not None:
        parts.append(f"heartbeat {_since(call.heartbeat_at, now)}")
    if call.progress is not None:
        parts.append(f"progress {json.dumps(call.progress)}")
    return ", ".join(parts)


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
        call.id,
        call.run_id,
        call.tool,
        _clock(call.created_at),
        _clock(call.expires_at) if call.expires_at is not None else "",
        "never" if is_unsent else _clock(call.dispatched_at) if call.dispatched_at is not None else "",
        _clock(call.heartbeat_at) if call.heartbeat_at is not None else "",
    )


def add_events(parser: ArgumentParser) -> None:
    """Declare the options of `events`."""
    parser.add_argument("run", type=identifier, metavar="RUN", help="id of a run")
    parser.add_argument("--after", type=positive, default=0, metavar="SEQ", help="only later ones")
    parser.add_argument("--follow", action="store_true", help="wait for more until the run has ended")
    add_shared(parser)


async def events(options: Namespace) -> int:
    """Print the events of a run, each in a line; 1 if there is no such run."""
    async with opened(options) as (_, runs):
        after = options.after
        while True:
            try:
                page = await runs.event_page(options.run, after)
            except UnknownRun:
                return no_run(options)
            for event in page.events:
                after = event.seq
                if options.json:
                    print(json.dumps({"seq": event.seq, "time": event.time, "type": event.type, **event.data}))
                else:
                    say(f"{event.seq:>6}  {_clock(event.time)}  {event.type:<22}  {_facts(event.data)}".rstrip())
            if page.is_over or not (page.has_more or options.follow):
                return 0
            if not page.has_more:
                await runs.wait_for_events(options.run, after, 60)


def _facts(data: Any) -> str:
    return flat(
        " ".join(f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in data.items())
    )


def _error(kind: str | None, message: str | None) -> str:
    return f"{kind}: {message}" if kind and message else message or kind or ""


def _clock(seconds: float) -> str:
    return text.clock(int(seconds * _NANO))


def _since(moment: float | None, now: float) -> str:
    return "?" if moment is None else f"{_clock(moment)} ({text.seconds(max(now - moment, 0.0))} ago)"


def _until(moment: float | None, now: float) -> str:
    if moment is None:
        return "?"
    distance = text.seconds(abs(moment - now))
    return f"{_clock(moment)} ({f'in {distance}' if moment > now else f'{distance} ago'})"
