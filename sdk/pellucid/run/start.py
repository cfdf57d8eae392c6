"""How a run begins: with an input, or from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from pellucid.approvals.checkpoint import Checkpoint
from pellucid.approvals.claims import Claims
from pellucid.approvals.decisions import Decision
from pellucid.context import CancelToken, Identity
from pellucid.errors import CheckpointError, ConfigError
from pellucid.messages import Message
from pellucid.run.pause import prepare
from pellucid.run.state import Run, Setup
from pellucid.telemetry import Listeners, Pipeline
from pellucid.text import excerpt
from pellucid.types import JSONObject

Input: TypeAlias = str | Message | Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a caller gives a run beside its input.

    Attributes:
        stream: Who reads it as a stream, if anybody does.
    """

    identity: Identity | None
    signal: CancelToken | None
    deps: Any
    stream: Listeners | None = None
    pipeline: Pipeline | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a run goes on from."""

    checkpoint: Checkpoint
    decisions: Sequence[Decision]
    claims: Claims | None


def resumed(checkpoint: JSONObject, decisions: Iterable[Decision], claims: Claims | None) -> Resumed:
    """Read what a run goes on from.

    Raises:
        CheckpointError: the checkpoint is damaged, or none.
    """
    return Resumed(Checkpoint.from_dict(checkpoint), tuple(decisions), claims)


def begin(setup: Setup, what: Sequence[Message] | Resumed, around: Around) -> Run:
    """Make a run of an agent; nothing has happened in it yet.

    Raises:
        CheckpointError: the checkpoint is another agent's, or these decisions are none for it.
    """
    if not isinstance(what, Resumed):
        return _run(setup, what, around)
    kept = what.checkpoint
    if kept.agent != setup.name:
        raise CheckpointError(f"this checkpoint is for agent {kept.agent!r}; agent {setup.name!r} cannot resume it")
    run = _run(setup, kept.conversation, replace(around, identity=around.identity or kept.identity))
    prepare(run, kept, what.decisions, what.claims)
    return run


def conversation(history: Iterable[Message], given: Input) -> Sequence[Message]:
    """Return a history and an input as the messages that a run starts with.

    Raises:
        ConfigError: one of them is something else.
    """
    remedy = "give Message objects, such as result.messages; load_messages() reads what dump_messages() wrote"
    if isinstance(history, str | Message) or not isinstance(history, Iterable):
        raise ConfigError(f"history={excerpt(repr(history))} of a run is not a sequence of messages; {remedy}")
    messages = list(history)
    for index, message in enumerate(messages):
        if not isinstance(message, Message):
            raise ConfigError(f"history[{index}]={excerpt(repr(message))} of a run is not a Message; {remedy}")
    return [*messages, *messages_of(given)]


def messages_of(given: Input) -> Sequence[Message]:
    """Return an input as messages.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(given, str):
        return [Message("user", given)]
    messages = [given] if isinstance(given, Message) else list(given)
    if not messages or not all(isinstance(message, Message) for message in messages):
        raise ConfigError("the input of a run must be a text, a Message, or a sequence with at least one Message")
    return messages


def _run(setup: Setup, messages: Sequence[Message], around: Around) -> Run:
    return Run(
        setup,
        messages,
        identity=around.identity,
        signal=around.signal,
        deps=around.deps,
        pipeline=around.pipeline,
        stream=around.stream,
    )
