"""Conversations: what each run keeps of its messages, and the history with which the next one starts.

The rows of a run have its own messages only. The history is joined from the runs before it when a pass starts; it is
the same in each pass, because these runs have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from pellucid.context import Identity
from pellucid.durable.runs.continuation import folded_of, steps_of
from pellucid.durable.states.records import Conversation, RunState, state_of
from pellucid.durable.store import Claim, RunStore, Turn
from pellucid.durable.store.conversations import IfBusy as Conversations
from pellucid.durable.store.records import FINAL
from pellucid.durable.store.values import digest_of, is_given_up
from pellucid.errors import ConfigError, PellucidError, UnknownConversation
from pellucid.messages import Message, ToolCall, ToolResult, load_messages
from pellucid.types import JSONObject

__all__ = ["Conversations", "conversation_key", "history_of", "own_messages", "read"]

_log = logging.getLogger("pellucid.durable_runs")

MAX_PAGE: Final = 100
"""Runs of a page."""

ENDED: Final = (
    "No result: the run {status} before this call had one. If the call had started, its effect is unknown: "
    "find out before you repeat it."
)
"""Result of a call that had none when its run failed or was cancelled."""


def conversation_key(identity: Identity) -> str:
    """Return the id of a conversation in the store; each principal of each tenant has its own conversations."""
    return digest_of(identity.tenant, identity.principal, identity.conversation_id)


async def history_of(store: RunStore, claim: Claim) -> Sequence[Message]:
    """Return the messages before a claimed run in its conversation.

    Raises:
        ConfigError: the result of a run that is completed is damaged.
    """
    if claim.conversation is None:
        return ()
    page = await store.conversation(claim.conversation, before=claim.turn)
    return [message for turn in page.turns for message in kept(turn)]


async def read(store: RunStore, identity: Identity, before: int | None, limit: int) -> Conversation:
    """Return a page of the conversation of an identity.

    Raises:
        ConfigError: the limit is not a number from 1 to 100.
        UnknownConversation: the identity has no such conversation.
    """
    if not 1 <= limit <= MAX_PAGE:
        raise ConfigError(f"conversation(limit={limit}): must be 1 to {MAX_PAGE} runs")
    conversation_id = identity.conversation_id or ""
    page = await store.conversation(conversation_key(identity), before=before, limit=limit)
    if not page.turns and page.open_run is None and before is None:
        raise UnknownConversation(conversation_id)
    states = {turn.run.id: _state(turn) for turn in page.turns}
    open_run = states.get(page.open_run or "")
    if page.open_run is not None and open_run is None and (run := await store.run(page.open_run)) is not None:
        open_run = state_of(run, await store.calls(run.id))
    return Conversation(
        conversation_id=conversation_id,
        runs=tuple(states.values()),
        before=page.turns[0].number if page.has_more else None,
        open_run=open_run,
    )


def own_messages(state: JSONObject, history: Sequence[Message]) -> JSONObject:
    """Return the checkpoint or the result of a run without the messages before the run."""
    messages = cast("list[Any]", state["messages"])
    return {**state, "messages": messages[len(history) :]} if history else state


def kept(turn: Turn) -> Sequence[Message]:
    """Return what a run that has ended adds to its conversation.

    It is all messages of a run that is completed, and of another one those up to its last answer, with a result for
    each call. A run without an answer adds nothing: nothing was done, and its input may be sent again. Nor does a run
    that was given up, because its content may be what ended the processes.

    Raises:
        ConfigError: the result of a run that is completed is damaged.
    """
    run = turn.run
    if run.status == "completed":
        return load_messages(run.result.get("messages") if isinstance(run.result, dict) else None)
    try:
        if is_given_up(run) or (run.checkpoint is None and not steps_of(turn.journal)):
            return ()
        state = folded_of(run, turn.journal, {call.id for call in turn.calls}, ()).checkpoint
        return _closed(state.conversation, state.known_results, run.status)
    except (PellucidError, TypeError, LookupError, ValueError) as error:
        _log.warning("durable_run.not_in_conversation run_id=%s: its rows are damaged: %s", run.id, error)
        return ()


def _closed(messages: Sequence[Message], results: Mapping[str, ToolResult], status: str) -> Sequence[Message]:
    """Return messages with a result for each call of the last one."""
    text = ENDED.format(status="failed" if status == "failed" else "was cancelled")

    def result_of(call: ToolCall) -> ToolResult:
        call_id = call.id or ""
        return results.get(call_id) or ToolResult(call_id, text, is_error=True, name=call.name)

    calls = messages[-1].tool_calls
    return [*messages, Message("tool", [result_of(call) for call in calls])] if calls else messages


def _state(turn: Turn) -> RunState:
    state = state_of(turn.run, turn.calls)
    return replace(state, messages=tuple(kept(turn))) if turn.run.status in FINAL else state
