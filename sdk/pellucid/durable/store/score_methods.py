"""Scores that the holders of tokens give to runs: each token gives one of each name."""

from __future__ import annotations

from functools import partial

from pellucid.durable.store.database import Transaction
from pellucid.durable.store.transactions import Transactions
from pellucid.durable.store.values import dump, load
from pellucid.errors import UnknownRun
from pellucid.types import JSONValue


class ScoreMethods(Transactions):
    """Methods of the store on scores by tokens."""

    async def give_score(self, run_id: str, token: str, name: str, score: JSONValue) -> JSONValue:
        """Store the score of a run that a token gives under a name; return the one that it gave before, or None.

        Args:
            run_id: The run.
            token: Digest of the token.
            name: Name of the score.
            score: The score, not None.

        Raises:
            UnknownRun: there is no such run.
        """
        return await self._write(partial(_give, run_id=run_id, token=token, name=name, score=score))


def _give(tx: Transaction, run_id: str, token: str, name: str, score: JSONValue) -> JSONValue:
    if tx.one("give_score", run_id=run_id, token=token, name=name, score=dump(score)) is not None:
        return None
    row = tx.one("find_given_score", run_id=run_id, token=token, name=name)
    if row is None:
        raise UnknownRun(run_id)
    given = load(row["score"])
    return None if tx.is_repeat and given == score else given
