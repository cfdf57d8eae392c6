"""`pellucid durable doctor`: what is stuck in a store, why, and what to do."""

from __future__ import annotations

from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from pellucid_commands.durable.options import REFUSED, add_shared, opened, store_hint
from pellucid_commands.inspection.output import flat, say, say_json
from pellucid_exporters.stored import text

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid.durable.store.troubles import Trouble, TroubleKind

_LIMIT: Final = 20
"""Troubles of each kind."""

_OR_OTHERS: Final = ", or let other versions continue with `pellucid durable retry RUN`"

_TEXTS: Final[dict[TroubleKind, tuple[str, str, str]]] = {
    "no_worker": (
        "due runs of {agent}{version}: {number}, for {age}; no live worker has that agent{that_version}",
        "start one, or look why it ended{or_others}; workers of earlier releases are not seen",
        "pellucid worker MODULE:NAME{as_version}",
    ),
    "workers_busy": (
        "due runs of {agent}{version}: {number}, for {age}; the live workers ({detail}) do not get to them",
        "start more workers, or give them more slots",
        "pellucid worker MODULE:NAME --concurrency 16",
    ),
    "lease_expired": (
        "the lease of run {run_id} of {agent}{version} expired {age} ago, and no worker has taken it from {worker}",
        "start a worker that has the agent{or_others}",
        "pellucid worker MODULE:NAME{as_version}",
    ),
    "quarantined": (
        "run {run_id} of {agent}: {attempts} leases expired in a row, the last one of {worker}",
        "look whether its content ends processes; it runs alone now. Cancel it if so",
        "pellucid durable show {run_id}",
    ),
    "retrying": (
        "run {run_id} of {agent} fails for {age}, {attempts} times in a row: {detail}",
        "mend what the error names; the run goes on by itself, or at once with",
        "pellucid durable retry {run_id}",
    ),
    "not_dispatched": (
        "call {result_id} of tool {tool} was registered {age} ago, and never sent",
        "the tool hangs or has raised, or its worker ended: a worker that continues the run sends it",
        "pellucid durable show {run_id}",
    ),
    "overdue": (
        "call {result_id} of tool {tool} is {age} past its deadline",
        "a worker of any agent expires it, and one of the agent of its run continues that: start one",
        "pellucid worker MODULE:NAME",
    ),
    "approval_waits": (
        "approval {result_id} of tool {tool} waits for {age}",
        "decide",
        "pellucid durable decide {run_id} {result_id} --approve",
    ),
    "callback_dead": (
        "the state of run {run_id} was given up {age} ago, after {attempts} attempts: {detail}",
        "mend the receiver, then send it again",
        "pellucid durable callback {run_id}",
    ),
    "newer_schema": ("a newer Pellucid has changed the store: {detail}", "update this one", "pip install -U pellucid"),
}
"""Finding, remedy and command of each kind."""


def add_doctor(parser: ArgumentParser) -> None:
    """Declare the options of `doctor`."""
    add_shared(parser)


async def doctor(options: Namespace) -> int:
    """Print what is stuck; 1 if anything is."""
    async with opened(options) as (store, _):
        found = await store.troubles(limit=_LIMIT)
    if options.json:
        say_json({"troubles": [_document(trouble) for trouble in found]})
    elif found:
        for trouble in found:
            wrong, remedy, command = _said(trouble)
            say(wrong, f"    {remedy}", f"    $ {command}")
        full = {trouble.kind for trouble in found if [other.kind for other in found].count(trouble.kind) == _LIMIT}
        say(
            *(f"there may be more: {_LIMIT} at most are shown of {kind}" for kind in sorted(full)), *store_hint(options)
        )
    else:
        say("nothing is stuck; runs that have failed: pellucid durable list --status failed")
    return REFUSED if found else 0


def _said(trouble: Trouble) -> tuple[str, ...]:
    facts = {
        **asdict(trouble),
        "age": text.seconds(trouble.age),
        "number": f"{trouble.number:,}",
        "version": f" version {trouble.version}" if trouble.version is not None else "",
        "that_version": " in that version" if trouble.version is not None else "",
        "as_version": f" --agents-version {quote(trouble.version)}" if trouble.version is not None else "",
        "or_others": _OR_OTHERS if trouble.version is not None else "",
        "worker": trouble.worker or "its worker",
    }
    return tuple(flat(part.format(**facts)) for part in _TEXTS[trouble.kind])


def _document(trouble: Trouble) -> dict[str, Any]:
    wrong, remedy, command = _said(trouble)
    known = {name: value for name, value in asdict(trouble).items() if value is not None}
    return {**known, "text": wrong, "remedy": remedy, "command": command}
