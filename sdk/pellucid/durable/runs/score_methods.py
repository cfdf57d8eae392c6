"""Methods of `DurableRuns` on scores."""

from __future__ import annotations

from pellucid.durable.store import RunStore
from pellucid.types import JSONValue


class ScoreMethods:
    """Part of `DurableRuns`."""

    _store: RunStore

    async def give_score(self, run_id: str, token: str, name: str, score: JSONValue) -> JSONValue:
        """Let a token give a run one score of a name; see `RunStore.give_score`."""
        return await self._store.give_score(run_id, token, name, score)
