"""Scores of the runs of a store as they end, by any number of processes."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
from anyio.to_thread import run_sync

from pellucid.errors import ConfigError
from pellucid.scores.scoring import SCORER_TIMEOUT, scores_of
from pellucid.semconv import COMPLETED, FAILED, TIMEOUT
from pellucid.text import clean
from pellucid_exporters.stored.evidence import evidence_of_run
from pellucid_exporters.stored.rows import AGENT, RUNNING, RunRow, kind_of

if TYPE_CHECKING:
    from pellucid.scores import Score, Scorer
    from pellucid_commands.scoring.arrivals import Arrivals
    from pellucid_commands.scoring.claims import Claims
    from pellucid_commands.scoring.recording import Recorder
    from pellucid_exporters.local.reader import StoreReader

AT_ONCE: Final = 8
"""Runs that a process scores at once."""

LEASE: Final = SCORER_TIMEOUT + 60
"""Seconds that a process has for a run: its scorers, and the writing."""

PAUSE: Final = 1.0
"""Seconds between two looks into the store."""

_ENDED: Final = frozenset({COMPLETED, FAILED, TIMEOUT})
_PASSING: Final = (OSError, sqlite3.Error)
"""Transient errors: a store that is busy, or full."""

Place: TypeAlias = Callable[[Collection[str]], None]

_PAGE: Final = 500
_MARGIN: Final = 300 * 10**9
"""Nanoseconds after its start at which the first record of a run is in the store at the latest."""


class Watch:
    """Scores of the runs of a store that are not nested in others, as they end.

    Args:
        reader: The store.
        scorers: Scorers of the runs.
        claims: Claims of all processes.
        arrivals: Spans that have arrived by OTLP.
        recorder: Destination of the scores.
        agent: Name of the agent whose runs are scored; None for all.
        say: Called with each run and its scores.
    """

    def __init__(
        self,
        reader: StoreReader,
        scorers: Sequence[Scorer],
        claims: Claims,
        arrivals: Arrivals,
        recorder: Recorder,
        agent: str | None,
        say: Callable[[RunRow, Sequence[Score]], None],
    ) -> None:
        self._reader, self._scorers, self._claims = reader, scorers, claims
        self._arrivals = arrivals
        self._recorder, self._agent, self._say = recorder, agent, say
        self._recording = anyio.Lock()

    async def run(self, *, is_once: bool, place: Place | None = None) -> None:
        """Score runs until cancelled.

        Args:
            is_once: Whether to return when no run is left that nobody scores.
            place: Called with traces of which nothing more is waited for, if this process receives them.
        """
        while True:
            try:
                now = self._arrivals.now()
                if place is not None:
                    await run_sync(self._settle, place, now)
                is_whole = await self._look(now)
            except _PASSING as error:
                print(f"{clean(error)}; again in {PAUSE:g} s", file=sys.stderr)
                is_whole = False
            if is_once and is_whole:
                return
            await anyio.sleep(PAUSE)

    async def _look(self, now: float) -> bool:
        """Score the runs that are there; return whether none was left for later."""
        due = await run_sync(self._due, now)
        starts = {run_id: row.start for run_id, row in due.items()}
        is_whole = True
        while is_whole and (taken := await run_sync(self._claims.take, starts, AT_ONCE)):
            scored: list[bool] = []

            async def score(run_id: str, scored: list[bool] = scored) -> None:
                scored.append(await self._score(due[run_id]))

            async with anyio.create_task_group() as tasks:
                for run_id in taken:
                    tasks.start_soon(score, run_id)
            is_whole = all(scored)
        return is_whole

    def _due(self, now: float) -> dict[str, RunRow]:
        """Return the runs that have ended and are not scored, by their ids."""
        waiting = self._arrivals.waiting()
        rows = self._rows(self._claims.since())
        rows |= {row.run_id: row for row in self._reader.rows(waiting)}
        done = self._claims.done()
        unsettled = self._arrivals.unsettled(now)  # after the rows: what the store has was noted before
        ended = {run_id: row for run_id, row in rows.items() if run_id not in done and self._is_scored(row)}
        due = {run_id: row for run_id, row in ended.items() if row.trace_id not in unsettled}
        self._arrivals.finish(run for run in waiting if run not in ended and _is_whole(rows.get(run), unsettled))
        open_since = [row.start for row in rows.values() if row.status == RUNNING or row.run_id in ended]
        self._claims.forget(min([*open_since, time.time_ns() - _MARGIN]))
        return due

    def _settle(self, place: Place, now: float) -> None:
        """Put right what came out of order in traces of which nothing more is waited for."""
        if settled := self._arrivals.settled(now):
            place(settled)
            self._arrivals.forget(settled, now)

    def _is_scored(self, row: RunRow) -> bool:
        """Return whether a run is to be scored, now that it has ended."""
        is_own = row.parent_run_id is None and row.replay_of is None and kind_of(row.conversation) == AGENT
        return is_own and row.status in _ENDED and self._agent in {None, row.agent}

    def _rows(self, since: int) -> dict[str, RunRow]:
        """Return the runs that started since a time, by their ids."""
        found: dict[str, RunRow] = {}
        before: int | None = None
        while True:
            page = self._reader.runs(agent=self._agent, before=before, replays=False, kind=AGENT, limit=_PAGE)
            new = {row.run_id: row for row in page if row.start >= since and row.run_id not in found}
            found |= new
            if not new or len(page) < _PAGE:
                return found
            before = page[-1].start + 1  # others may have started at the same time

    async def _score(self, row: RunRow) -> bool:
        """Score a run; return False if it is to be scored later."""
        try:
            evidence = await run_sync(evidence_of_run, self._reader, row)
            scores = await scores_of(self._scorers, evidence)
            async with self._recording:
                recorded = await run_sync(self._recorder.record, evidence.scored, scores)
        except ConfigError as error:  # it cannot be scored at all
            print(f"run {row.run_id}: {clean(error)}", file=sys.stderr)
            recorded = ()
        except _PASSING as error:
            print(f"run {row.run_id}: {clean(error)}; it is scored later", file=sys.stderr)
            await run_sync(self._claims.release, row.run_id)
            return False
        await run_sync(self._claims.finish, row.run_id)
        await run_sync(self._arrivals.finish, [row.run_id])
        if recorded:
            self._say(row, recorded)
        return True


def _is_whole(row: RunRow | None, unsettled: Collection[str]) -> bool:
    """Return whether the store has a run, and nothing more of it is waited for; one without was not acknowledged."""
    return row is not None and row.trace_id not in unsettled
