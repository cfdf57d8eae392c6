"""`pellucid durable retry`, `cancel`, `callback`, `settle`, `decide`, `purge` and `drain`."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Final

from pellucid.approvals.decisions import Decision
from pellucid.durable.store.records import FINAL
from pellucid.errors import ConfigError, ConversationBusy
from pellucid_commands.durable.ids import whole_call_id, whole_run_id
from pellucid_commands.durable.options import REFUSED, RUN_HELP, add_shared, identifier, json_value, opened
from pellucid_commands.durations import duration
from pellucid_commands.inspection.output import say, say_json

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from pellucid.durable import DurableRuns, Settlement

_UNKNOWN: Final = "is not in the store; see: pellucid durable list"
_CALL_HELP: Final = "its id as `calls` prints it, or the kind and four characters: async_tool_5d0d"


def add_retry(parser: ArgumentParser) -> None:
    """Declare the options of `retry`."""
    parser.add_argument("runs", type=identifier, nargs="+", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--reason", help="why, for its events")
    add_shared(parser)


async def retry(options: Namespace) -> int:
    """Continue runs that have ended."""
    said = {
        "due": "is due, and continues from its journal",
        "open": "has neither ended nor waits for another attempt or a version; see: pellucid durable show",
        "completed": "is completed",
        "busy": "waits for its conversation, in which another run is open",
        "unknown": _UNKNOWN,
    }

    async def outcome_of(runs: DurableRuns, run_id: str) -> str:
        try:
            return (await runs.retry(run_id, options.reason)).outcome
        except ConversationBusy:
            return "busy"

    return await _each_run(options, outcome_of, said, done=("due",))


def add_cancel(parser: ArgumentParser) -> None:
    """Declare the options of `cancel`."""
    parser.add_argument("runs", type=identifier, nargs="+", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--reason", default="Cancelled by an operator.", help="reason, shown with the run")
    add_shared(parser)


async def cancel(options: Namespace) -> int:
    """Cancel runs."""
    said = {
        "cancelled": "is cancelled",
        "requested": "is cancelled by its worker at the next step",
        "ended": "had ended",
        "unknown": _UNKNOWN,
    }

    async def outcome_of(runs: DurableRuns, run_id: str) -> str:
        return (await runs.cancel(run_id, options.reason)).outcome

    return await _each_run(options, outcome_of, said, done=("cancelled", "requested"))


def add_callback(parser: ArgumentParser) -> None:
    """Declare the options of `callback`."""
    parser.add_argument("runs", type=identifier, nargs="+", metavar="RUN", help=RUN_HELP)
    add_shared(parser)


async def callback(options: Namespace) -> int:
    """Send the latest states of runs to their callback URLs again."""
    said = {
        "due": "is due to have its state sent to its callback URL, by a worker",
        "nothing": "has no callback URL, or its latest state was delivered",
    }

    async def outcome_of(runs: DurableRuns, run_id: str) -> str:
        return "due" if await runs.retry_callback(run_id) else "nothing"

    return await _each_run(options, outcome_of, said, done=("due",))


async def _each_run(
    options: Namespace,
    outcome_of: Callable[[DurableRuns, str], Awaitable[str]],
    said: Mapping[str, str],
    *,
    done: Sequence[str],
) -> int:
    """Act on each run and print the outcome; return 1 if the action failed for any."""
    outcomes: dict[str, str] = {}
    async with opened(options) as (store, runs):
        for run_id in [await whole_run_id(store, start) for start in options.runs]:
            outcomes[run_id] = await outcome_of(runs, run_id)
            if not options.json:
                say(f"run {run_id} {said[outcomes[run_id]]}")
    if options.json:
        say_json({"runs": [{"id": run_id, "outcome": outcome} for run_id, outcome in outcomes.items()]})
    return 0 if set(outcomes.values()) <= set(done) else REFUSED


def add_settle(parser: ArgumentParser) -> None:
    """Declare the options of `settle`."""
    parser.add_argument("results", type=identifier, nargs="+", metavar="RESULT", help=_CALL_HELP)
    result = parser.add_mutually_exclusive_group(required=True)
    result.add_argument("--output", type=json_value, metavar="JSON", help="output of the calls")
    result.add_argument("--error", metavar="TEXT", help="why there is none; the model reads it")
    add_shared(parser)


async def settle(options: Namespace) -> int:
    """Store the result of calls."""
    settlements: dict[str, Settlement] = {}
    async with opened(options) as (store, runs):
        for result_id in [await whole_call_id(store, start) for start in options.results]:
            settlements[result_id] = await runs.settle(result_id, output=options.output, error=options.error)
    return _settled(options, settlements, "the store has no such call; see: pellucid durable calls")


def add_decide(parser: ArgumentParser) -> None:
    """Declare the options of `decide`."""
    parser.add_argument("run", type=identifier, metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "approval",
        type=identifier,
        metavar="APPROVAL",
        help=_CALL_HELP,
    )
    decision = parser.add_mutually_exclusive_group(required=True)
    decision.add_argument("--approve", action="store_true", help="let the call run")
    decision.add_argument("--deny", action="store_true", help="refuse it")
    parser.add_argument("--reason", help="why; the model reads it")
    parser.add_argument("--as", dest="decided_by", metavar="NAME", help="who decides (default: the user of the system)")
    add_shared(parser)


async def decide(options: Namespace) -> int:
    """Decide about an approval."""
    decided_by = options.decided_by or _user()
    async with opened(options) as (store, runs):
        run_id = await whole_run_id(store, options.run)
        approval_id = await whole_call_id(store, options.approval)
        decision = Decision(approval_id, options.approve, reason=options.reason, decided_by=decided_by)
        [settlement] = await runs.decide(run_id, [decision])
    unknown = f"the run has no such approval; see: pellucid durable show {run_id}"
    return _settled(options, {approval_id: settlement}, unknown)


def _user() -> str:
    """Return the user of the system.

    Raises:
        ConfigError: it has no name, as in some containers.
    """
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise ConfigError("the user of this process has no name; say who decides with --as") from None


def _settled(options: Namespace, settlements: Mapping[str, Settlement], unknown: str) -> int:
    if options.json:
        say_json({"calls": [{"id": call, "outcome": settlement.outcome} for call, settlement in settlements.items()]})
    else:
        say(*(f"{call} {settlement.outcome}: {_said(settlement, unknown)}" for call, settlement in settlements.items()))
    return 0 if all(each.outcome in ("settled", "duplicate") for each in settlements.values()) else REFUSED


def _said(settlement: Settlement, unknown: str) -> str:
    return {
        "settled": "the run goes on" if settlement.is_run_due else f"the run waits for {settlement.pending} more",
        "duplicate": "it was there already",
        "conflict": "there is another one, which counts",
        "late": "its deadline had passed, or it was cancelled; the run reads that instead",
        "unknown": unknown,
    }[settlement.outcome]


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
    parser.add_argument("worker", type=identifier, metavar="WORKER", help="its name, as `workers` prints it")
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
