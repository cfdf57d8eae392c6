"""Evidence of a run, for scorers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from pellucid.messages import Message, TextPart, ToolCall, ToolResult, Usage
from pellucid.run.outcomes import RunResult
from pellucid.run.structured_output import REPAIR
from pellucid.scores.case import Case
from pellucid.scores.scored import Scored, scored_of
from pellucid.types import JSONObject, JSONValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A call of a tool, with its result.

    Attributes:
        name: Name of the tool.
        arguments: Its arguments; a text if the model wrote no JSON object.
        result: Result that the model got; None if it got none, or an empty one.
        is_error: Whether the model got an error.
        is_answered: Whether there is a result.
    """

    name: str
    arguments: JSONObject | str
    result: JSONValue = None
    is_error: bool = False
    is_answered: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanFacts:
    """A span of a run.

    Attributes:
        attributes: As recorded, by the names of OpenTelemetry and `pellucid.semconv`.
        seconds: Duration.
        error_type: `error.type`; empty if it did not fail.
        events: Its span events: objects with `name`, `time` and `attributes`.
    """

    name: str
    span_id: str
    parent_id: str
    attributes: Mapping[str, Any]
    seconds: float
    error_type: str = ""
    events: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence of a run: a scorer names the parts that it needs in its parameters.

    Attributes:
        scored: Subject of the score: ids of the run and its span, agent, version and model.
        input: Text of the question; that of the last message of the user.
        output: The answer: its text, or its value if the agent has an output type.
        expected: Expected answer of the case; None if there is no case, or nothing is known.
        messages: The whole conversation.
        tools: The calls of tools since the question, in the order of the model's calls.
        spans: The spans of the run, by their start; empty if they are not known.
        usage: Tokens and cost of the model calls.
        seconds: Duration of the run; None if it is not known, as of one that went on after a pause.
        iterations: Passes of the loop.
        status: That of the result, such as `completed`; `failed` if the run raised.
        case: The case that was asked; None if the run is not one of an experiment.
        missing: Names of attributes of which a recording has nothing, or only a part. A scorer that needs one gives an
            error, `content_not_recorded`, unless it needs `missing` too. The names of `tools` are always whole.
    """

    scored: Scored
    input: str = ""
    output: Any = None
    expected: JSONValue = None
    messages: tuple[Message, ...] = ()
    tools: tuple[ToolUse, ...] = ()
    spans: tuple[SpanFacts, ...] = ()
    usage: Usage = field(default_factory=Usage)
    seconds: float | None = None
    iterations: int | None = None
    status: str = "completed"
    case: Case | None = None
    missing: frozenset[str] = frozenset()


EVIDENCE: Final = tuple(item.name for item in fields(Evidence))
"""Names that parameters of scorers may have."""


def evidence_of(
    result: RunResult[Any],
    *,
    seconds: float | None = None,
    spans: Sequence[SpanFacts] = (),
    case: Case | None = None,
    model: str = "",
) -> Evidence:
    """Return what scorers see of a result.

    Args:
        result: The result.
        seconds: Duration of the run, if it is known.
        spans: Its spans, if they are known.
        case: The case that was asked.
        model: Model that was asked, a label of the metric.
    """
    scored = scored_of(result)
    return Evidence(
        scored=replace(scored, model=model or scored.model),
        input=question_of(result.messages),
        output=result.output,
        expected=case.expected if case is not None else None,
        messages=result.messages,
        tools=tool_uses(since_question(result.messages)),
        spans=tuple(spans),
        usage=result.usage,
        seconds=seconds,
        iterations=result.iterations,
        status=result.status,
        case=case,
    )


def question_of(messages: Sequence[Message]) -> str:
    """Return the text of the last message of the user; empty if there is none."""
    asked = since_question(messages)[:1]
    return "\n".join(part.content for message in asked for part in message.parts if isinstance(part, TextPart))


def since_question(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the last message of the user and what follows it; none if there is no such message.

    A message about an answer that does not fit the output type, which the run itself adds, is none of the user.
    """
    asked = [
        index
        for index, message in enumerate(messages)
        if message.role == "user" and not message.text.startswith(REPAIR)
    ]
    return messages[asked[-1] :] if asked else ()


def tool_uses(messages: Iterable[Message]) -> tuple[ToolUse, ...]:
    """Return the calls of tools in a conversation, each with its result."""
    calls: list[ToolCall] = []
    results: dict[str, ToolResult] = {}
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                calls.append(part)
            elif isinstance(part, ToolResult):
                results[part.id] = part
    return tuple(_use(call, results.get(call.id) if call.id is not None else None) for call in calls)


def _use(call: ToolCall, result: ToolResult | None) -> ToolUse:
    if result is None:
        return ToolUse(name=call.name, arguments=call.arguments, is_answered=False)
    response = result.structured if result.structured is not None else result.response
    return ToolUse(name=call.name, arguments=call.arguments, result=response, is_error=result.is_error)
