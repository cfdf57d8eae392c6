"""Whose turn it is: cases side by side while there is money, and one after the other when it gets short."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace

import anyio

from pellucid_experiments.trials import Planned, Trial, known_sum, not_run


class Turns:
    """State that the workers of an experiment share.

    Each call in flight reserves its longest answer in the budget, so that runs are refused because of others before the
    money is spent. The first one that is refused ends this: from then on, cases are asked one by one.

    Args:
        ask: Asks a case.
        planned: Questions to ask.
    """

    def __init__(self, ask: Callable[[Planned], Awaitable[Trial]], planned: Iterable[Planned]) -> None:
        self._ask = ask
        self._left = deque(planned)
        self._in_flight = 0
        self._ended = anyio.Event()
        self._is_short = False
        self._is_spent = False
        self._alone = anyio.Lock()

    def next(self) -> Planned | None:
        """Return what is to be asked next; None if there is nothing, or no money."""
        return self._left.popleft() if self._left and not self._is_spent else None

    async def trial(self, planned: Planned) -> Trial:
        """Ask a case."""
        refused: Trial | None = None
        if not self._is_short:
            trial = await self._beside_others(planned)
            if trial.status != "budget":
                return trial
            self._is_short, refused = True, trial
        async with self._alone:
            while self._in_flight:
                await self._ended.wait()
            if self._is_spent:
                return refused or not_run(planned)
            trial = await self._ask(planned)
            self._is_spent = trial.status == "budget"
        return trial if refused is None else _together(refused, trial)

    async def _beside_others(self, planned: Planned) -> Trial:
        self._in_flight += 1
        try:
            return await self._ask(planned)
        finally:
            self._in_flight -= 1
            self._ended.set()
            self._ended = anyio.Event()


def _together(first: Trial, second: Trial) -> Trial:
    """Return the second trial with what the first one has used."""
    return replace(
        second,
        attempts=first.attempts + second.attempts,
        tokens=known_sum([first.tokens, second.tokens]),
        cost=known_sum([first.cost, second.cost]),
        scoring_cost=known_sum([first.scoring_cost, second.scoring_cost]),
    )
