"""One replay: what is live, how fast time passes, and what to do when the run differs from the tape."""

from __future__ import annotations

import json
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Literal, NoReturn, TypeAlias

import anyio

from pellucid.context import CancelToken
from pellucid.errors import PellucidError
from pellucid.text import excerpt
from pellucid.types import JSONValue
from pellucid_replay.tape import TapedSpan

OnDivergence: TypeAlias = Literal["stop", "live"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """First boundary at which a replay differs from its tape.

    Attributes:
        boundary: Name of the span, such as `chat gpt-6-sol`.
        iteration: Iteration of the replay.
        what: Part that differs: `messages`, `tools`, `arguments`, `result`, ...
        recorded: The side of the tape; None if the tape has no such boundary.
        replayed: The side of the replay; None if the replay has no such boundary.
        run_id: Recorded run.
        span_id: Recorded span, if there is one.
    """

    boundary: str
    iteration: int | None
    what: str
    recorded: JSONValue
    replayed: JSONValue
    run_id: str
    span_id: str | None = None

    def __str__(self) -> str:
        place = f"{self.boundary}, iteration {self.iteration}" if self.iteration else self.boundary
        return f"{place}: {self.what} differ: recorded {_shown(self.recorded)}, replayed {_shown(self.replayed)}"


class ReplayDiverged(PellucidError, AssertionError):
    """A replay differs from its tape.

    Attributes:
        divergence: The first difference.
    """

    error_type = "replay_diverged"

    def __init__(self, divergence: Divergence) -> None:
        super().__init__(f"the replay differs from the recording at {divergence}")
        self.divergence = divergence


@dataclass(slots=True)
class Session:
    """State of one replay.

    Attributes:
        live: Parts that are not answered from the tape: `model`, `tool:<name>`, `hub:<provider id>`.
        timing: Factor by which recorded durations are multiplied.
        on_divergence: Whether the replay stops at the first difference, continues live, or fails there.
        token: Stops the replay.
        divergence: The first difference.
        stopped: The boundary at which the recorded run was stopped, once the replay has come to it.
        origin: Start of the replayed run by the event loop's clock, and of the recorded one in nanoseconds.
    """

    live: AbstractSet[str]
    timing: float
    on_divergence: OnDivergence | Literal["raise"]
    token: CancelToken = field(default_factory=CancelToken)
    divergence: Divergence | None = None
    stopped: TapedSpan | None = None
    origin: tuple[float, int] | None = None

    def begin(self, root: TapedSpan) -> None:
        """Note that the replay of a run starts."""
        self.origin = (anyio.current_time(), root.start)

    @property
    def is_live(self) -> bool:
        """True if nothing is answered from the tape any more."""
        return self.divergence is not None and self.on_divergence == "live"

    async def wait(self, span: TapedSpan, elapsed: float = 0.0) -> None:
        """Wait until a boundary ends: at its recorded time in the run, or if a part is live, as long as it took.

        Args:
            span: The boundary.
            elapsed: Recorded seconds that were waited for since its start.
        """
        if self.origin is None or self.live or self.is_live:
            await self.sleep(max(0.0, span.seconds - elapsed))
        elif self.timing > 0 and span.end is not None:
            started, recorded = self.origin
            await anyio.sleep_until(started + (span.end - recorded) / 1e9 * self.timing)

    async def sleep(self, seconds: float) -> None:
        """Wait for recorded seconds."""
        if self.timing > 0:
            await anyio.sleep(seconds * self.timing)

    async def diverge(self, divergence: Divergence) -> None:
        """Note the first difference; stop the replay, or return if it continues live.

        Raises:
            ReplayDiverged: the replay fails at a difference.
        """
        self.divergence = self.divergence or divergence
        if self.on_divergence == "raise":
            raise ReplayDiverged(divergence)
        if self.on_divergence == "stop":
            await self._stop("the replay differs from the recording")

    async def end(self, span: TapedSpan) -> NoReturn:
        """Stop where the recorded run was stopped."""
        self.stopped = self.stopped or span
        await self._stop("the recording ends here")

    async def _stop(self, reason: str) -> NoReturn:
        self.token.cancel(reason)
        await anyio.sleep_forever()
        raise AssertionError(reason)


def _shown(value: JSONValue) -> str:
    return "nothing" if value is None else excerpt(json.dumps(value, ensure_ascii=False, default=str))
