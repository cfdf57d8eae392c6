"""Pieces of the answers of one pass."""

from __future__ import annotations

from collections.abc import Callable

from pellucid.durable.runs.live.hub import LiveHub
from pellucid.durable.states.records import RunDelta
from pellucid.durable.store import Claim
from pellucid.models import ModelDelta


class PassText:
    """Publishes the pieces of the answers of a pass, if anybody reads them.

    Args:
        hub: The hub.
        claim: Claim of the pass.
        is_always: Whether answers are streamed also if nobody reads when they begin.
    """

    def __init__(self, hub: LiveHub, claim: Claim, *, is_always: bool) -> None:
        self._hub = hub
        self._run_id, self._claim = claim.run.id, claim.run.fence
        self._is_always = is_always

    def is_wanted(self) -> bool:
        """Return whether the next answer is to be streamed."""
        return self._is_always or self._hub.is_read(self._run_id)

    def sender(self, iteration: int, attempt: int, *, is_closing: bool) -> Callable[[ModelDelta], None]:
        """Return the function that publishes the pieces of one attempt to answer."""
        hub, run_id, claim = self._hub, self._run_id, self._claim
        key = f"{iteration}:closing" if is_closing else f"{iteration}"
        offsets: dict[str, int] = {}

        def send(delta: ModelDelta) -> None:
            offset = offsets.get(delta.type, 0)
            offsets[delta.type] = offset + len(delta.content)
            if hub.is_read(run_id):
                hub.publish(run_id, RunDelta(key, claim, attempt, delta.type, offset, delta.content))

        return send
