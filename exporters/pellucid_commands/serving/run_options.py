"""Options of the commands that continue durable runs, and the runs that these commands make with them."""

from __future__ import annotations

from argparse import ArgumentTypeError
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from pellucid.durable import DurableRuns, OnChange, RetryPolicy, StreamMode
from pellucid.durable.store.records import FINAL
from pellucid_commands.durations import duration
from pellucid_commands.serving.numbers import positive, seconds

if TYPE_CHECKING:
    import signal
    from argparse import ArgumentParser, Namespace
    from collections.abc import AsyncIterator, Mapping, Sequence

    from pellucid import Agent
    from pellucid.durable import RunStatus, RunStore

_RETRY: Final = RetryPolicy()


def add_run_arguments(parser: ArgumentParser) -> None:
    """Declare how runs are continued."""
    parser.add_argument(
        "--concurrency", type=positive, default=8, metavar="N", help="runs at the same time (default: 8)"
    )
    parser.add_argument(
        "--lease", type=float, default=30.0, metavar="SECONDS", help="when others continue a lost run (default: 30)"
    )
    parser.add_argument(
        "--poll",
        type=seconds,
        default=1.0,
        metavar="SECONDS",
        help="between looks for lost runs and overdue calls (default: 1)",
    )
    parser.add_argument(
        "--max-expired-leases",
        type=positive,
        default=5,
        metavar="N",
        help="after which a run is given up that ends each process it has for itself (default: 5)",
    )
    _add_retry_arguments(parser)
    parser.add_argument(
        "--drain-timeout",
        type=duration,
        default=30.0,
        metavar="SECONDS",
        help="for runs to come to the end of a step at SIGTERM; 0 gives them back at once (default: 30)",
    )
    parser.add_argument(
        "--retain",
        type=retention,
        action="append",
        default=[],
        metavar="[STATUS=]TIME",
        help="delete runs that ended so long ago, such as 30d or failed=90d; may be given again (default: none)",
    )
    parser.add_argument(
        "--stream",
        choices=get_args(StreamMode),
        default="read",
        help="stream answers if somebody reads when they begin, always, or never (default: read)",
    )


def _add_retry_arguments(parser: ArgumentParser) -> None:
    """Declare what happens after a failure, and when the code has changed."""
    parser.add_argument(
        "--max-attempts",
        type=positive,
        default=_RETRY.max_attempts,
        metavar="N",
        help="passes in a row that may fail before a run fails; 1 for none (default: 5)",
    )
    parser.add_argument(
        "--retry-for",
        type=seconds,
        default=_RETRY.max_elapsed,
        metavar="SECONDS",
        help="time after the first of these failures (default: 3600)",
    )
    parser.add_argument(
        "--agents-version",
        metavar="VERSION",
        help="continue only runs of this version of the agents, and new ones (default: all runs)",
    )
    parser.add_argument(
        "--on-change",
        choices=get_args(OnChange),
        default="continue",
        help="what runs do whose agent has changed: continue, or wait for the one they began with (default: continue)",
    )


def runs_of(
    options: Namespace, store: RunStore, agents: Sequence[Agent[Any, Any]], run_options: Mapping[str, Any]
) -> DurableRuns:
    """Return the durable runs of a command."""
    return DurableRuns(
        store,
        agents,
        lease=options.lease,
        poll=options.poll,
        max_expired_leases=options.max_expired_leases,
        stream=options.stream,
        retry=RetryPolicy(max_attempts=options.max_attempts, max_elapsed=options.retry_for),
        on_change=options.on_change,
        version=options.agents_version,
        retain=_ages(options.retain),
        **run_options,
    )


async def drain_at_signals(runs: DurableRuns, signals: AsyncIterator[signal.Signals], first: float) -> None:
    """Drain at the first signal, with this timeout, and give everything back at the second."""
    timeouts = chain([first], repeat(0.0))
    async for _ in signals:
        runs.drain(next(timeouts))


def retention(text: str) -> Mapping[RunStatus, float]:
    """Return the times for which runs stay after they have ended, by status, of one option of the command line."""
    status, has_status, age = text.rpartition("=")
    if has_status and status not in FINAL:
        raise ArgumentTypeError(f"{status!r} is not one of {', '.join(sorted(FINAL))}")
    return dict.fromkeys([cast("RunStatus", status)] if has_status else FINAL, duration(age))


def _ages(given: Sequence[Mapping[RunStatus, float]]) -> Mapping[RunStatus, float] | None:
    """Return the times of all options: those for one status count for it, wherever they are."""
    ages: dict[RunStatus, float] = {}
    for each in sorted(given, key=len, reverse=True):
        ages |= each
    return ages or None
