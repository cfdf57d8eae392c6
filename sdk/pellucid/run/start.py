"""Start a run from an input or a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from opentelemetry.trace import SpanContext

from pellucid.context import CancelToken, Identity
from pellucid.errors import ConfigError
from pellucid.messages import Message
from pellucid.run.run_journal import NO_JOURNAL, RunJournal
from pellucid.run.state import CallerContext, Configuration, Run, Setup
from pellucid.telemetry import Listeners
from pellucid.text import excerpt
from pellucid.tools.tool import Tool

if TYPE_CHECKING:
    from pellucid.approvals.checkpoint import Checkpoint
    from pellucid.approvals.claims import Claims
    from pellucid.approvals.decisions import Decision
    from pellucid.approvals.external import ExternalResult
    from pellucid.run.journal import Folded, Journal, LiveText

Input: TypeAlias = str | Message | Sequence[Message]


@dataclass(frozen=True, slots=True)
class ResumeRequest:
    """A checkpoint to resume from, with the decisions and external results.

    Attributes:
        folded: State that the checkpoint is of, if the run was interrupted.
        links: Spans that the run links to.
    """

    checkpoint: Checkpoint
    decisions: Sequence[Decision]
    results: Sequence[ExternalResult]
    claims: Claims | None
    folded: Folded | None = None
    links: Sequence[SpanContext] = ()


def create_run(setup: Setup, source: Sequence[Message] | ResumeRequest, context: CallerContext) -> Run:
    """Create a run of an agent, without starting it.

    Raises:
        CheckpointError: the checkpoint is another agent's, or the decisions do not fit it.
    """
    if not isinstance(source, ResumeRequest):
        run = Run(setup, source, context)
        if run.journal.is_durable:
            from pellucid.run.pausing.pausing import pausing_of

            pausing_of(run)
        return run
    from pellucid.run.resume import resumed_run

    waited_for = source.decisions, source.results, source.claims
    return resumed_run(setup, context, source.checkpoint, *waited_for, source.folded, source.links)


def new_run(
    configuration: Configuration,
    source: Sequence[Message] | ResumeRequest,
    deps: Any,
    options: Mapping[str, Any],
    *,
    stream: Listeners | None = None,
    journal: Journal | None = None,
    live: LiveText | None = None,
    check_tools: Callable[[Iterable[Tool]], None] | None = None,
) -> Run:
    """Create a run for a caller, without starting it.

    Args:
        configuration: Configuration of the agent.
        source: Its start.
        deps: Value for tools.
        options: `CallerOptions` of the caller.
        stream: Listeners of the stream's reader.
        journal: Journal of the pass of a durable run.
        live: Sends pieces of the answers to those who read the durable run.
        check_tools: Checks the tools of each iteration.

    Raises:
        CheckpointError: as for `create_run`.
        ConfigError: the identity, the signal or a tag has another type, or there are too many tags.
    """
    identity, signal = options.get("identity"), options.get("signal")
    if not isinstance(identity, Identity | None):
        from pellucid.caller_checks import not_an_identity

        raise not_an_identity(identity, "run")
    if not isinstance(signal, CancelToken | None):
        from pellucid.caller_checks import not_a_signal

        raise not_a_signal(signal)
    tags = options.get("tags") or ()
    if tags:
        from pellucid.caller_checks import checked_tags

        tags = checked_tags(tags)
    caller = CallerContext(
        identity=identity,
        signal=signal,
        deps=deps,
        budget=options.get("budget"),
        stream=stream,
        pipeline=configuration.pipeline,
        journal=journal_of(journal),
        live=live,
        check_tools=check_tools,
        tags=tags,
    )
    return create_run(configuration.setup, source, caller)


def journal_of(journal: Journal | None) -> RunJournal:
    """Return the journal of a run, which writes nothing if the run is not durable."""
    if journal is None:
        return NO_JOURNAL
    from pellucid.run.pausing.steps import DurableJournal

    return DurableJournal(journal)


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
    if isinstance(new_input, str):
        return [*messages, Message("user", new_input)]
    given: Any = [new_input] if isinstance(new_input, Message) else new_input
    inputs = list(given) if isinstance(given, Iterable) else []
    if not inputs or not all(isinstance(message, Message) for message in inputs):
        shown = excerpt(repr(new_input))
        raise ConfigError(f"input={shown} of a run is not a text, a Message, or a sequence with at least one Message")
    return [*messages, *inputs]
