"""`pellucid durable retry`, `cancel`, `settle`, `decide`, `purge` and `drain`."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from pellucid.approvals.decisions import Decision
from pellucid.durable.store.records import FINAL
from pellucid.errors import ConfigError
from pellucid_commands.durable.options import REFUSED, add_shared, identifier, json_value, opened
from pellucid_commands.durations import duration
from pellucid_commands.inspection.output import say, say_json

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from pellucid.durable import Settlement


def add_retry(parser: ArgumentParser) -> None:
    """Declare the options of `retry`."""
    parser.add_argument("run", type=identifier, metavar="RUN", help="id of a run that failed or was cancelled")
    parser.add_argument("--reason", help="why, for its events")
    add_shared(parser)


async def retry(options: Namespace) -> int:
    """Continue a run that has ended."""
    async with opened(options) as (_, runs):
        outcome = (await runs.retry(options.run, options.reason)).outcome
    said = {
        "due": "is due, and continues from its journal",
        "open": "has not ended, and goes on by itself",
        "completed": "is completed",
        "unknown": "is not in the store",
    }
    return _answered(options, outcome, f"run {options.run} {said[outcome]}", is_done=outcome == "due")


def add_cancel(parser: ArgumentParser) -> None:
    """Declare the options of `cancel`."""
    parser.add_argument("run", type=identifier, metavar="RUN", help="id of a run")
    parser.add_argument("--reason", default="Cancelled by an operator.", help="why, for whoever reads the run")
    add_shared(parser)


async def cancel(options: Namespace) -> int:
    """Cancel a run."""
    async with opened(options) as (_, runs):
        outcome = (await runs.cancel(options.run, options.reason)).outcome
    said = {
        "cancelled": "is cancelled",
        "requested": "is cancelled by its worker at the next step",
        "ended": "had ended",
        "unknown": "is not in the store",
    }
    is_done = outcome in ("cancelled", "requested")
    return _answered(options, outcome, f"run {options.run} {said[outcome]}", is_done=is_done)


def add_settle(parser: ArgumentParser) -> None:
    """Declare the options of `settle`."""
    parser.add_argument("result", type=identifier, metavar="RESULT", help="id of the call, as `show` prints it")
    result = parser.add_mutually_exclusive_group(required=True)
    result.add_argument("--output", type=json_value, metavar="JSON", help="output of the call")
    result.add_argument("--error", metavar="TEXT", help="why there is none; the model reads it")
    add_shared(parser)


async def settle(options: Namespace) -> int:
    """Store the result of a call."""
    async with opened(options) as (_, runs):
        settlement = await runs.settle(options.result, output=options.output, error=options.error)
    return _settled(options, options.result, settlement)


def add_decide(parser: ArgumentParser) -> None:
    """Declare the options of `decide`."""
    parser.add_argument("run", type=identifier, metavar="RUN", help="id of the run")
    parser.add_argument("approval", type=identifier, metavar="APPROVAL", help="id of the approval, as `show` prints it")
    decision = parser.add_mutually_exclusive_group(required=True)
    decision.add_argument("--approve", action="store_true", help="let the call run")
    decision.add_argument("--deny", action="store_true", help="refuse it")
    parser.add_argument("--reason", help="why; the model reads it")
    parser.add_argument("--as", dest="decided_by", metavar="NAME", help="who decides (default: the user of the system)")
    add_shared(parser)


async def decide(options: Namespace) -> int:
    """Decide about an approval."""
    decided_by = options.decided_by or _user()
    decision = Decision(options.approval, options.approve, reason=options.reason, decided_by=decided_by)
    async with opened(options) as (_, runs):
        [settlement] = await runs.decide(options.run, [decision])
    return _settled(options, options.approval, settlement)


def _user() -> str:
    """Return the user of the system.

    Raises:
        ConfigError: it has no name, as in some containers.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ConfigError("the user of this process has no name; say who decides with --as") from None


def _settled(options: Namespace, result_id: str, settlement: Settlement) -> int:
    said = {
        "settled": "the run goes on" if settlement.is_run_due else f"the run waits for {settlement.pending} more",
        "duplicate": "it was there already",
        "conflict": "there is another one, which counts",
        "late": "the call or its run was over",
        "unknown": "the store has no such call",
    }
    is_done = settlement.outcome in ("settled", "duplicate")
    text = f"{result_id} {settlement.outcome}: {said[settlement.outcome]}"
    return _answered(options, settlement.outcome, text, is_done=is_done)


def add_purge(parser: ArgumentParser) -> None:
    """Declare the options of `purge`."""
    parser.add_argument(
        "--older-than", type=duration, required=True, metavar="TIME", help="that ended so long ago: 12h, 30d"
    )
    parser.add_argument("--status", choices=sorted(FINAL), help="only runs that ended so, of no conversation")
    parser.add_argument("--dry-run", action="store_true", help="only say how many")
    add_shared(parser)


async def purge(options: Namespace) -> int:
    """Delete runs that ended long ago."""
    async with opened(options) as (store, _):
        ages = {options.status: options.older_than} if options.status else options.older_than
        number = await store.purge(ages, dry_run=options.dry_run)
    if options.json:
        say_json({"runs": number, "deleted": not options.dry_run})
    else:
        say(f"{number:,} runs {'would be deleted' if options.dry_run else 'deleted'}")
    return 0


def add_drain(parser: ArgumentParser) -> None:
    """Declare the options of `drain`."""
    parser.add_argument("worker", type=identifier, metavar="WORKER", help="its name, as `list` and `doctor` print it")
    add_shared(parser)


async def drain(options: Namespace) -> int:
    """Ask workers to claim nothing more and to end."""
    async with opened(options) as (_, runs):
        number = await runs.drain_worker(options.worker)
        known = sorted({worker.name for worker in await runs.workers()}) if not number else []
    if options.json:
        say_json({"workers": number})
    elif number:
        say(f"asked workers named {options.worker} to end: {number}; each ends when its runs have, or gives them back")
    else:
        say(f"there is no worker {options.worker}; known are: {', '.join(known) or 'none'}")
    return 0 if number else REFUSED


def _answered(options: Namespace, outcome: str, text: str, *, is_done: bool) -> int:
    if options.json:
        say_json({"outcome": outcome})
    else:
        say(text)
    return 0 if is_done else REFUSED
