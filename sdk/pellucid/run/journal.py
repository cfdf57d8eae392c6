"""The journal of a durable run, as a protocol: its steps as they end, and the state that they add up to."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias

from pellucid.approvals.checkpoint import Checkpoint
from pellucid.approvals.external import ExternalRequest
from pellucid.models import ModelDelta, ModelResponse

ANSWER: Final = "answer"
"""Step: the model has answered. Its messages are all those since the answer before."""

BEGUN: Final = "begun"
"""Step: a pass has started. It has the ids of the pass's span, for the process that finds the pass killed."""

STARTED: Final = "started"
"""Step: a tool is about to run, within a span of these ids."""

RESULT: Final = "result"
"""Step: a call has its result, or its sub-agent has paused."""

CallAddress: TypeAlias = tuple[str | None, str | None, float | None]
"""Address that receives the result of a call, its token, and the time of its expiry in seconds since the epoch."""

Registration: TypeAlias = Literal["new", "dispatched", "settled"]
"""State of a registered call: `new` if it has to be dispatched; `settled` if it ended before it was marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """State of a run that was interrupted.

    Attributes:
        checkpoint: Conversation and counters; results and pending approvals of the calls of the last message.
        left: Ids of the calls of the last message that have to run.
        answer: The last answer, if it has no calls.
        can_repair: Whether the model may correct that answer if it does not fit the output type.
        stop: Reason why that answer is the closing one, if it is.
    """

    checkpoint: Checkpoint
    left: Collection[str] = ()
    answer: ModelResponse | None = None
    can_repair: bool = True
    stop: str | None = None


class Journal(Protocol):
    """Journal of one pass of a durable run. A method that raises `JournalError` ends the pass.

    Attributes:
        run_id: Id of the durable run.
        namespace: Namespace of the ids of calls and approvals, the same in all passes of the run.
    """

    @property
    def run_id(self) -> str:
        """Id of the durable run, which is the same in all its passes."""
        ...

    @property
    def namespace(self) -> uuid.UUID:
        """Namespace of the ids of calls and approvals."""
        ...

    def is_continued_elsewhere(self) -> bool:
        """Return whether another process has claimed the run."""
        ...

    async def write(self, step: str, key: str, value: Mapping[str, Any], *, is_progress: bool = True) -> None:
        """Append a step, before anything else is awaited: its value is JSON that the run may change later.

        Args:
            step: Kind of the step.
            key: Unique among the steps of its kind in a pass.
            value: JSON, with states of the run as `Checkpoint.partial` returns them.
            is_progress: Whether a pass that continues after this step starts from another state than before it.
        """
        ...

    async def register(self, request: ExternalRequest, key: str, started: Mapping[str, Any]) -> Registration:
        """Register a call before its dispatch, with the step that it has started under this key."""
        ...

    async def dispatched(self, result_id: str) -> None:
        """Mark a call as dispatched."""
        ...

    def completion_of(self, request: ExternalRequest) -> CallAddress:
        """Return address and token with which another process returns a result, and when the call expires.

        The address and the token are None without a server. The time is by the clock of the store, if there is one.
        """
        ...


class LiveText(Protocol):
    """Pieces of the answers of a durable run, for those who read it. Neither method waits."""

    def is_wanted(self) -> bool:
        """Return whether the next answer is to be streamed."""
        ...

    def sender(self, iteration: int, attempt: int, *, is_closing: bool) -> Callable[[ModelDelta], None]:
        """Return the function that sends the pieces of one attempt to answer."""
        ...


@dataclass(frozen=True, slots=True)
class NestedJournal:
    """Journal of a sub-agent's run: its external calls are registered; its steps are one step of the outer run.

    What its spans are is written, too, without the state of the run.
    """

    outer: Journal
    namespace: uuid.UUID

    @property
    def run_id(self) -> str:
        """Id of the durable run of the outer run."""
        return self.outer.run_id

    def is_continued_elsewhere(self) -> bool:
        """Return whether another process has claimed the outer run."""
        return self.outer.is_continued_elsewhere()

    async def write(self, step: str, key: str, value: Mapping[str, Any], *, is_progress: bool = True) -> None:
        """Write which calls have started and ended."""
        if step != ANSWER:
            facts = {name: fact for name, fact in value.items() if name != "state"}
            key = f"{self.namespace.hex}:{key}"
            await self.outer.write(step, key, {**facts, "is_nested": True}, is_progress=False)

    async def register(self, request: ExternalRequest, key: str, started: Mapping[str, Any]) -> Registration:
        """Register a call of the outer run."""
        nested = {**started, "is_nested": True}
        return await self.outer.register(request, f"{self.namespace.hex}:{key}", nested)

    async def dispatched(self, result_id: str) -> None:
        """Mark a call of the outer run as dispatched."""
        await self.outer.dispatched(result_id)

    def completion_of(self, request: ExternalRequest) -> CallAddress:
        """Return address, token and expiry of a call of the outer run."""
        return self.outer.completion_of(request)
