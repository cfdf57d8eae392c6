"""Start a run from an input or a checkpoint."""

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
class CallerContext:
    """Options of a run besides its input.

    Attributes:
        stream: Listeners of the stream's reader, if the run is streamed.
    """

    identity: Identity | None
    signal: CancelToken | None
    deps: Any
    stream: Listeners | None = None
    pipeline: Pipeline | None = None


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """A checkpoint to resume from, with the decisions."""

    checkpoint: Checkpoint
    decisions: Sequence[Decision]
    claims: Claims | None


def resume_request(checkpoint: JSONObject, decisions: Iterable[Decision], claims: Claims | None) -> ResumeRequest:
    """Read a checkpoint, and return the request to resume from it.

    Raises:
        CheckpointError: it is damaged, or not a checkpoint.
    """
    return ResumeRequest(Checkpoint.from_dict(checkpoint), tuple(decisions), claims)


def create_run(setup: Setup, source: Sequence[Message] | ResumeRequest, context: CallerContext) -> Run:
    """Create a run of an agent, without starting it.

    Raises:
        CheckpointError: the checkpoint is another agent's, or the decisions do not fit it.
    """
    if not isinstance(source, ResumeRequest):
        return _run(setup, source, context)
    checkpoint = source.checkpoint
    if checkpoint.agent != setup.name:
        raise CheckpointError(
            f"this checkpoint is for agent {checkpoint.agent!r}; agent {setup.name!r} cannot resume it"
        )
    run = _run(setup, checkpoint.conversation, replace(context, identity=context.identity or checkpoint.identity))
    prepare(run, checkpoint, source.decisions, source.claims)
    return run


def conversation(history: Iterable[Message], new_input: Input) -> Sequence[Message]:
    """Return a history and an input as the messages that a run starts with.

    Raises:
        ConfigError: one of them has another type.
    """
    remedy = "give Message objects, such as result.messages; load_messages() reads what dump_messages() wrote"
    if isinstance(history, str | Message) or not isinstance(history, Iterable):
        raise ConfigError(f"history={excerpt(repr(history))} of a run is not a sequence of messages; {remedy}")
    messages = list(history)
    for index, message in enumerate(messages):
        if not isinstance(message, Message):
            raise ConfigError(f"history[{index}]={excerpt(repr(message))} of a run is not a Message; {remedy}")
    return [*messages, *messages_of(new_input)]


def messages_of(new_input: Input) -> Sequence[Message]:
    """Return an input as messages.

    Raises:
        ConfigError: it has another type.
    """
    if isinstance(new_input, str):
        return [Message("user", new_input)]
    messages = [new_input] if isinstance(new_input, Message) else list(new_input)
    if not messages or not all(isinstance(message, Message) for message in messages):
        raise ConfigError("the input of a run must be a text, a Message, or a sequence with at least one Message")
    return messages


def _run(setup: Setup, messages: Sequence[Message], context: CallerContext) -> Run:
    return Run(
        setup,
        messages,
        identity=context.identity,
        signal=context.signal,
        deps=context.deps,
        pipeline=context.pipeline,
        stream=context.stream,
    )
