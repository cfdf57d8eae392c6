"""Experiments: each case of a set, asked of each candidate, and scored."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Unpack

import anyio
from anyio.to_thread import run_sync

from pellucid.agent import Agent
from pellucid.budgets import Budget
from pellucid.errors import ConfigError, ErrorKind
from pellucid.failures import describe, error_kind_of, first_of, retry_after_of
from pellucid.messages import Usage
from pellucid.models import Model
from pellucid.scores import Case, Score, Scorer, scores_of
from pellucid.scores.record import record
from pellucid.scores.scoring import SCORER_TIMEOUT, name_of
from pellucid.scores.spending import Spending, spent_by_scorers
from pellucid.telemetry import Pipeline, Scope
from pellucid_experiments.asking import Asker, Attempt
from pellucid_experiments.candidates import Candidate, candidates_of
from pellucid_experiments.case_files import fingerprint
from pellucid_experiments.checks import check_numbers, check_prices, check_scorers, check_sources, judges_of
from pellucid_experiments.estimate import Estimate, estimate_of
from pellucid_experiments.journal import Journal
from pellucid_experiments.naming import checked_name
from pellucid_experiments.options import ExperimentOptions
from pellucid_experiments.report import Report
from pellucid_experiments.trials import Planned, Trial, known_sum, not_run, once_each
from pellucid_experiments.turns import Turns
from pellucid_replay import Recording

RETRIED: Final[frozenset[ErrorKind]] = frozenset({"rate_limited", "unavailable", "timeout"})
"""Kinds of failures after which a case is asked again."""

_LONGEST_WAIT: Final = 60.0
_FIRST_WAIT: Final = 0.5
_SHOWN: Final = 4 * 1024
"""Characters of an answer in the report."""


class Experiment:
    """An experiment that has not begun; `experiment()` makes one and runs it.

    Attributes:
        name: Its name.
        planned: All trials, the repeats of a case one after the other.
        candidates: The candidates by name.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        agent: Agent[Any, Any] | Mapping[str, Agent[Any, Any]],
        *,
        scorers: Sequence[Scorer],
        models: Sequence[Model | str] = (),
        replay: Recording | None = None,
        live: Collection[str] = (),
        repeat: int = 1,
        jobs: int = 8,
        max_cost: float | None = None,
        retries: int = 2,
        name: str = "experiment",
        deps: Any = None,
        telemetry: Pipeline | None = None,
        scorer_timeout: float = SCORER_TIMEOUT,
    ) -> None:
        """Check everything that can be checked before the first run; the arguments are those of `experiment()`."""
        self.name = checked_name(name)
        self.candidates = candidates_of(agent, models, telemetry)
        check_scorers(scorers, "experiment()")
        if not cases:
            raise ConfigError("experiment(): there is no case")
        check_numbers({"repeat": (repeat, 1), "jobs": (jobs, 1), "retries": (retries, 0)})
        self._max_cost = max_cost
        if max_cost is not None:
            check_prices([*(candidate.setup for candidate in self.candidates.values()), *judges_of(scorers).values()])
        if replay is not None:
            check_sources(cases, self.candidates, replay)
        self._cases = tuple(cases)
        self._scorers = tuple(scorers)
        self._recording = replay
        self._live = live
        self._repeat = repeat
        self._jobs = jobs
        self._retries = retries
        self._deps = deps
        self._scorer_timeout = scorer_timeout
        self.planned = [
            Planned(case, candidate, number)
            for case in cases
            for candidate in self.candidates
            for number in range(1, repeat + 1)
        ]

    @property
    def plan(self) -> dict[str, Any]:
        """Contents of the experiment; a journal is resumed with the same only."""
        return {
            "name": self.name,
            "cases": {case.id: fingerprint(case) for case in self._cases},
            "candidates": list(self.candidates),
            "scorers": [name_of(scorer) for scorer in self._scorers],
            "repeat": self._repeat,
            "mode": "live" if self._recording is None else "replay",
        }

    def estimate(self, done: Collection[tuple[str, str, int]] = (), store: Recording | None = None) -> Estimate:
        """Return what the trials that are not done will cost at about.

        Args:
            done: Keys of trials.
            store: Where recorded tokens are, if nothing is replayed.
        """
        left = [planned for planned in self.planned if planned.key not in done]
        judges = tuple(judges_of(self._scorers))
        return replace(estimate_of(left, self.candidates, self._recording or store), judges=judges)

    async def run(self, journal: Journal | None = None, on_trial: Callable[[Trial], None] | None = None) -> Report:
        """Ask all cases that the journal does not have, and return the report."""
        earlier = list(journal.trials) if journal is not None else []
        done = {trial.key: trial for trial in earlier if trial.is_done}
        spent = sum(trial.spent for trial in earlier)
        asker, budget = Asker(self.name, self._recording, self._live, self._deps), self._budget(spent)
        left = [planned for planned in self.planned if planned.key not in done]
        turns = Turns(lambda planned: self._ask(asker, planned, budget), left)
        found = dict(done)
        lock = anyio.Lock()

        async def work() -> None:
            while (planned := turns.next()) is not None:
                trial = await turns.trial(planned)
                if journal is not None:
                    async with lock:
                        await run_sync(journal.add, trial)
                found[trial.key] = trial
                if on_trial is not None:
                    on_trial(trial)

        try:
            async with anyio.create_task_group() as group:
                for _ in range(self._jobs):
                    group.start_soon(work)
        except BaseExceptionGroup as failures:
            raise first_of(failures) from None
        trials = [found.get(planned.key) or not_run(planned) for planned in self.planned]
        return Report(name=self.name, plan=self.plan, cases=self._cases, trials=tuple(trials))

    def _budget(self, spent: float) -> Budget | None:
        if self._max_cost is None:
            return None
        # Its account is this experiment's alone, also in a process that runs it twice.
        return Budget(f"experiment/{self.name}/{uuid.uuid4().hex[:8]}", cost=max(0.0, self._max_cost - spent))

    async def _ask(self, asker: Asker, planned: Planned, budget: Budget | None) -> Trial:
        """Ask a case once, again after failures that pass, and score the answer."""
        candidate = self.candidates[planned.candidate]
        usages: list[Usage] = []
        for number in range(1, self._retries + 2):
            attempt = await asker.ask(planned, candidate, budget)
            usages.append(attempt.usage)
            error = attempt.error
            if error is None or error_kind_of(error) not in RETRIED or number > self._retries:
                break
            wait = retry_after_of(error)
            await anyio.sleep(min(_LONGEST_WAIT, wait if wait is not None else _FIRST_WAIT * 2**number))
        return await self._trial(planned, candidate, attempt, usages, budget)

    async def _trial(
        self, planned: Planned, candidate: Candidate, attempt: Attempt, usages: Sequence[Usage], budget: Budget | None
    ) -> Trial:
        scope = Scope(agent=candidate.setup.name, pipeline=attempt.pipeline)
        facts: dict[str, Any] = {
            "case": planned.case.id,
            "candidate": planned.candidate,
            "repeat": planned.repeat,
            "run_id": attempt.run_id,
            "trace_id": attempt.trace_id,
            "seconds": attempt.seconds,
            "attempts": len(usages),
            "tokens": known_sum([count for usage in usages for count in (usage.input_tokens, usage.output_tokens)]),
            "cost": known_sum([usage.cost for usage in usages]),
        }
        result = attempt.result
        if attempt.problem:
            return Trial(status="not_replayable", problem=scope.text(attempt.problem, _SHOWN) or "", **facts)
        if result is None:
            error = attempt.error
            why = describe(error) if error is not None else "the run was stopped"
            return Trial(status="failed", problem=scope.text(why, _SHOWN) or "", **facts)
        if budget is not None and result.budget == budget.name:
            return Trial(status="budget", problem="the budget of the experiment is spent", **facts)
        evidence = attempt.evidence(planned, candidate.setup.model.name)
        spending = Spending(budget)
        with spent_by_scorers(spending):
            scores = once_each(await scores_of(self._scorers, evidence, within=self._scorer_timeout))
        facts["scoring_cost"] = known_sum([usage.cost for usage in spending.usages])
        if spending.is_refused:
            return Trial(status="budget", problem="the budget of the experiment is spent: for a judge", **facts)
        for score in scores:
            record(evidence.scored, score, attempt.pipeline)
        guarded = tuple(_guarded(scope, score) for score in scores)
        answer = scope.text(str(result.output), _SHOWN) if result.output is not None else None
        return Trial(status="judged", scores=guarded, answer=answer, **facts)


async def experiment(
    cases: Sequence[Case],
    agent: Agent[Any, Any] | Mapping[str, Agent[Any, Any]],
    *,
    journal: Path | str | None = None,
    resume: bool = False,
    on_trial: Callable[[Trial], None] | None = None,
    **options: Unpack[ExperimentOptions],
) -> Report:
    """Ask each case of each candidate, score the answers, and return the report.

    The runs are in traces and in the store, with `pellucid.experiment.*`, in the conversation `experiment/NAME`. They
    are in no metrics: no alert fires because of an experiment.

    Args:
        cases: The cases, such as those of `load_cases(path)`.
        agent: The agent; or several, by the names that they have in the report.
        journal: File to which each trial is written when it has ended.
        resume: Whether to continue what the journal has, in place of starting anew.
        on_trial: Called with each trial when it has ended.
        **options: `scorers` (required), `models`, `replay`, `live`, `repeat`, `jobs`, `max_cost`, `retries`, `name`,
            `deps`, `telemetry` and `scorer_timeout`; described in `ExperimentOptions`.

    Raises:
        ConfigError: an option cannot work, or a case cannot be replayed because it was made from no run.
        ExperimentError: the journal cannot be used.
    """
    asked = Experiment(cases, agent, **options)
    if journal is None:
        return await asked.run(on_trial=on_trial)
    opened = await run_sync(lambda: Journal.open(Path(journal), asked.plan, resume=resume))
    try:
        return await asked.run(opened, on_trial)
    finally:
        opened.close()


def _guarded(scope: Scope, score: Score) -> Score:
    """Return a score whose explanation is what the capture policy leaves of it."""
    explanation = scope.text(score.explanation, _SHOWN) if score.explanation is not None else None
    return Score(
        name=score.name,
        value=score.value,
        label=score.label,
        explanation=explanation,
        by=score.by,
        error_type=score.error_type,
    )
