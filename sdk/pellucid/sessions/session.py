"""A session: one conversation of an agent, which its runs continue one at a time."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, Unpack
from weakref import WeakKeyDictionary

from pellucid.concurrency.race import shielded
from pellucid.concurrency.sync import run_in_portal
from pellucid.context import CancelToken, Identity
from pellucid.errors import ConfigError
from pellucid.messages import Message
from pellucid.sessions.turns import EndTurn, Kept, MemoryTurns, StoredTurns, Turns
from pellucid.signatures import check_names
from pellucid.text import excerpt
from pellucid.types import DepsT_contra, OutputT_co

if TYPE_CHECKING:
    from pellucid.budgets import BudgetOption
    from pellucid.run.outcomes import RunResult
    from pellucid.run.start import Input
    from pellucid.run.stream import RunStream

MAX_ID: Final = 255
"""Characters of an id."""

_MEMORY: WeakKeyDictionary[Any, dict[str, Kept]] = WeakKeyDictionary()
"""Conversations in memory, by agent and key."""


class SessionRunOptions(TypedDict, total=False):
    """Options of the runs of a session, besides `deps`; see `RunOptions`."""

    signal: CancelToken | None
    budget: BudgetOption


class Session(Generic[DepsT_contra, OutputT_co]):
    """A conversation of an agent, made by `Agent.session()`.

    ```python
    session = agent.session("customer-7", store=store)
    print((await session.run("My order has not arrived.")).output)
    print((await session.run("It is number 7.")).output)
    ```

    Each run starts with the messages of the earlier ones and adds its own. One run at a time: a second one that starts
    meanwhile, in this process or another, raises `ConversationBusy`. A run that fails adds its messages up to the last
    answer, as the error carries them; nothing if there is none. Nor does a run that pauses for approvals or external
    results: use `DurableRuns.submit(conversation_id=)` for those.

    Attributes:
        id: Value of `gen_ai.conversation.id`.
    """

    def __init__(self, agent: Any, session_id: str, store: Any, identity: Identity | None, window: int | None) -> None:
        whose = f"Agent {agent.name!r}"
        known: Any = session_id  # such as the id of a user, which may be None
        if not (isinstance(known, str) and 0 < len(known) <= MAX_ID and known.isprintable()):
            raise ConfigError(f"{whose}: session({known!r}): the id must be 1 to {MAX_ID} printable characters")
        if window is not None and not (type(window) is int and window >= 1):
            raise ConfigError(f"{whose}: session(window={window!r}): must be at least 1 message, or None for all")
        if store is not None and not hasattr(store, "claim_run"):
            raise ConfigError(
                f"{whose}: session(store={excerpt(repr(store))}): must be an open store, such as that of "
                f"open_store('sqlite:///sessions.db')"
            )
        given: Any = identity
        if not isinstance(given, Identity | None):
            from pellucid.caller_checks import not_an_identity

            raise not_an_identity(given, "session")
        self.id = session_id
        self._agent, self._window = agent, window
        self._identity = replace(identity or Identity(), conversation_id=session_id)
        key = _key(agent.name, self._identity)
        self._turns: Turns = (
            MemoryTurns(_MEMORY.setdefault(agent, {}).setdefault(key, Kept()))
            if store is None
            else StoredTurns(store, f"session:{agent.name}"[:MAX_ID], key)
        )

    async def run(
        self,
        input: Input,  # noqa: A002  (as in `Agent.run`)
        *,
        deps: Any = None,
        **options: Unpack[SessionRunOptions],
    ) -> RunResult[OutputT_co]:
        """Run the agent in this conversation.

        Args:
            input: A text, a message, or a sequence of messages.
            deps: Value that tools receive as `ctx.deps`.
            **options: `signal` and `budget`, as in `RunOptions`.

        Raises:
            ConversationBusy: another run of the conversation has not ended.
            StoreError: the conversation could not be read, or its new messages could not be stored; then the error has
                them as `messages`.
            PellucidError: any other error that `Agent.run` raises.
        """
        _check_options("Session.run", options)
        history, end = await self._turns.begin(self._window)
        result: RunResult[OutputT_co] | None = None
        failure: object = None
        try:
            result = await self._agent.run(input, deps=deps, history=history, identity=self._identity, **options)
        except BaseException as error:
            failure = error
            raise
        finally:
            await _end(end, history, result if result is not None else failure)
        return result

    def run_sync(
        self,
        input: Input,  # noqa: A002
        *,
        deps: Any = None,
        **options: Unpack[SessionRunOptions],
    ) -> RunResult[OutputT_co]:
        """Call `run` from sync code; a store must then be open in any event loop."""
        return run_in_portal(lambda: self.run(input, deps=deps, **options))

    @asynccontextmanager
    async def stream(
        self,
        input: Input,  # noqa: A002
        *,
        deps: Any = None,
        **options: Unpack[SessionRunOptions],
    ) -> AsyncIterator[RunStream[OutputT_co]]:
        """Run the agent in this conversation and stream its events, as `Agent.stream` does.

        The conversation has the new messages once the block is left; of a run that is cancelled by leaving it early,
        those up to its last answer.

        Raises:
            ConversationBusy, StoreError: as for `run`.
        """
        _check_options("Session.stream", options)
        history, end = await self._turns.begin(self._window)
        stream: RunStream[OutputT_co] | None = None
        try:
            stream = self._agent.stream(input, deps=deps, history=history, identity=self._identity, **options)
            async with stream as events:
                yield events
        finally:
            await _end(end, history, _outcome(stream) if stream is not None else None)

    async def messages(self) -> tuple[Message, ...]:
        """Return the conversation, whole: also what is older than the window.

        Raises:
            StoreError: it could not be read.
        """
        return tuple(await self._turns.read(None))


def _check_options(function: str, options: Mapping[str, Any]) -> None:
    """Check the names of options.

    Raises:
        TypeError: one is unknown, or is of the session itself.
    """
    if "history" in options:
        remedy = "a session has its own history; run the agent with history=, or use another session"
        raise TypeError(f"{function}(history={excerpt(repr(options['history']))}): {remedy}")
    if "identity" in options:
        remedy = "give it to agent.session(identity=)"
        raise TypeError(f"{function}(identity={excerpt(repr(options['identity']))}): {remedy}")
    check_names(f"{function}()", options, SessionRunOptions)


def _key(agent: str, identity: Identity) -> str:
    """Return the id of a conversation where it is kept; each principal of each tenant has its own conversations."""
    facts = ["session", agent, identity.tenant, identity.principal, identity.conversation_id]
    return sha256(json.dumps(facts).encode()).hexdigest()


def _outcome(stream: RunStream[Any]) -> object:
    """Return the result of a stream, or the error that carries its messages."""
    try:
        return stream.result
    except ConfigError as error:
        return error


async def _end(end: EndTurn, history: Sequence[Message], outcome: object) -> None:
    """End a turn with the messages of its run.

    Raises:
        StoreError: they could not be stored.
    """
    whole: Sequence[Message] = getattr(outcome, "messages", None) or ()
    own = list(whole[len(history) :])
    while own and (own[-1].role not in ("assistant", "tool")):
        own.pop()
    if getattr(outcome, "checkpoint", None) is not None:
        own = []
    try:
        await shielded(end, own)
    except Exception as error:
        facts: Mapping[str, Any] = {name: getattr(outcome, name, None) for name in ("usage", "run_id", "trace_id")}
        vars(error).update(messages=tuple(whole), **facts)
        raise
