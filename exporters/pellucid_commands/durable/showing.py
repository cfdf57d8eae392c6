"""`pellucid durable show`: one run, and the command that helps it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pellucid.durable.states.bodies import call_json, overview_json
from pellucid.durable.store.records import QUARANTINE
from pellucid.durable.store.troubles import BUSY_AFTER, RESTARTED_AFTER
from pellucid.errors import UnknownRun
from pellucid_commands.durable.ids import whole_run_id
from pellucid_commands.durable.options import RUN_HELP, add_shared, identifier, opened, store_hint
from pellucid_commands.durable.words import error, no_run, since, until
from pellucid_commands.inspection.output import flat, say, say_json
from pellucid_exporters.stored import text

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid.durable import CallRecord, RunDescription


def add_show(parser: ArgumentParser) -> None:
    """Declare the options of `show`."""
    parser.add_argument("run", type=identifier, metavar="RUN", help=RUN_HELP)
    add_shared(parser)


async def show(options: Namespace) -> int:
    """Print where a run is, and what it waits for; 1 if there is none."""
    async with opened(options) as (store, runs):
        try:
            found = await runs.describe(await whole_run_id(store, options.run))
        except UnknownRun:
            return no_run(options)
    if options.json:
        say_json(_document(found))
    else:
        say(*_lines(found), *(store_hint(options) if _next(found) else ()))
    return 0


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
        "submitted": since(run.created_at, now),
        "updated": since(run.updated_at, now),
        "due": until(run.due_at, now) if run.due_at is not None else "",
        "worker": f"{run.worker}, lease {until(run.lease_until, now)}" if run.worker is not None else "",
        "expired leases": str(run.expired_leases or ""),
        "failed": f"{run.attempts} in a row, last {since(run.failed_at, now)}" if run.attempts else "",
        "error": error(run.last_error_type, run.last_error),
        "cancelled": found.cancel_reason or "",
        "key": run.idempotency_key or "",
        "conversation": _conversation(found),
        "journal": _journal(found),
        "callback": _callback(found),
        "trace": found.trace_id or "",
    }
    width = max(map(len, facts))
    lines = [f"{name:<{width}}  {flat(value)}" for name, value in facts.items() if value]
    lines += [f"{'started':<{width}}  {call.tool} {since(call.started_at, now)}" for call in found.journal.started]
    lines += [f"{'waits for':<{width}}  {_call(call, now)}" for call in found.waits_for]
    return [*lines, *(f"{'next':<{width}}  pellucid durable {command}" for command in _next(found))]


def _next(found: RunDescription) -> list[str]:
    """Return what an operator may do for the run, without the store."""
    run, now = found.run, found.now
    if run.status in ("failed", "cancelled"):
        return [f"retry {run.run_id}"]
    commands = [_answer(run.run_id, call) for call in found.waits_for if not _is_late(call, now)]
    if _needs_worker(found):
        commands.append("doctor")
    if run.status == "running" and run.expired_leases >= QUARANTINE:
        commands.append(f"cancel {run.run_id}")
    return commands


def _answer(run_id: str, call: CallRecord) -> str:
    if call.kind == "approval":
        return f"decide {run_id} {call.id} --approve (or --deny)"
    return f"settle {call.id} --output JSON (or --error TEXT)"


def _is_late(call: CallRecord, now: float) -> bool:
    """Return whether the store refuses a result of a call, because a worker has to expire it."""
    return call.expires_at is not None and call.expires_at <= now


def _needs_worker(found: RunDescription) -> bool:
    """Return whether the run needs a worker, as the doctor says in more words."""
    run, now = found.run, found.now
    if run.status == "retrying":
        return run.due_at is not None and run.due_at <= now - RESTARTED_AFTER
    if run.status == "running":
        return run.lease_until is not None and run.lease_until <= now - BUSY_AFTER
    return run.status == "due" or any(_is_late(call, now - BUSY_AFTER) for call in found.waits_for)


def _conversation(found: RunDescription) -> str:
    if found.conversation_id is None:
        return ""
    return f"{found.conversation_id}{f', after {found.runs_before} open runs' if found.runs_before else ''}"


def _journal(found: RunDescription) -> str:
    journal = found.journal
    sizes = f"{text.size(journal.size)}, checkpoint {text.size(journal.checkpoint_size)}"
    return f"answers {journal.answers}, results {journal.results}, entries {journal.entries}; {sizes}"


def _callback(found: RunDescription) -> str:
    callback = found.callback
    if callback is None:
        return ""
    error = f": {callback.last_error}" if callback.last_error else ""
    state = "dead" if callback.dead_at is not None else "due" if callback.next_at is not None else "delivered"
    return f"{state}, {callback.attempts} attempts{error}"


def _call(call: CallRecord, now: float) -> str:
    parts = [f"{call.kind} {call.tool} {call.id}, since {since(call.created_at, now)}"]
    if call.expires_at is not None:
        parts.append(f"until {until(call.expires_at, now)}")
    if _is_late(call, now):
        parts.append("past its deadline: a worker has to take it up")
    if call.kind == "external" and call.dispatched_at is None:
        parts.append("never sent")
    if call.heartbeat_at is not None:
        parts.append(f"heartbeat {since(call.heartbeat_at, now)}")
    if call.progress is not None:
        parts.append(f"progress {json.dumps(call.progress)}")
    return ", ".join(parts)
