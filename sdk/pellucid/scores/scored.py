"""A score, and the ids of the subject that it is about."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry.trace import Span, SpanContext, TraceFlags, format_span_id, format_trace_id

from pellucid.errors import ConfigError
from pellucid.events import Event
from pellucid.run.outcomes import RunResult
from pellucid.semconv.names import AGENT_NAME, AGENT_VERSION, REQUEST_MODEL, RESPONSE_ID, RUN_ID

MAX_NAME: Final = 128
"""Characters of a name or a label."""

_DIGITS: Final = frozenset("0123456789abcdef")
_LENGTHS: Final = {"trace_id": 32, "span_id": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Subject of a score: a span, a run, or an answer, by the ids that are known.

    Attributes:
        trace_id: 32 hexadecimal digits; empty if unknown.
        span_id: 16 hexadecimal digits; empty if unknown.
        run_id: Id of the run; empty if unknown.
        response_id: Id of a model's answer, `gen_ai.response.id`; empty if unknown.
        agent: Name of the agent, a label of the metric; empty if unknown.
        version: Version of the agent, a label of the metric; empty if unknown.
        model: Model that was asked, a label of the metric; empty if unknown.

    Raises:
        ConfigError: no id is given, or one is not as OpenTelemetry writes it.
    """

    trace_id: str = ""
    span_id: str = ""
    run_id: str = ""
    response_id: str = ""
    agent: str = ""
    version: str = ""
    model: str = ""

    def __post_init__(self) -> None:
        for name, length in _LENGTHS.items():
            given = getattr(self, name)
            if given and not (len(given) == length and set(given) <= _DIGITS):
                raise ConfigError(f"score: {name}={given!r} is not {length} hexadecimal digits in lower case")
        if not (self.trace_id or self.run_id or self.response_id):
            raise ConfigError("score: nothing says what it is about; give a result, a span, or Scored(run_id=...)")
        if self.span_id and not self.trace_id:
            raise ConfigError(f"score: span_id={self.span_id!r} needs a trace_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One judgement.

    Attributes:
        name: Quality that was judged, such as `correct`: a label of the metric, so one of few.
        value: A number, 0 or more; None for a judgement without one.
        label: One of few words for the value, such as `pass`.
        explanation: Why; content, which the capture policy redacts, or leaves out.
        by: The judge: a scorer, a model, a person.
        error_type: Type of the error for which there is no judgement (`error.type`); with one, there is no value.

    Raises:
        ConfigError: the value is no finite number of at least 0, or there is neither value, label nor error.
    """

    name: str
    value: float | None = None
    label: str | None = None
    explanation: str | None = None
    by: str | None = None
    error_type: str | None = None

    def __post_init__(self) -> None:
        if not _is_word(self.name) or not self.name:
            raise ConfigError(f"score: name={self.name!r:.200} is not a name of 1 to {MAX_NAME} characters")
        if self.label is not None and not _is_word(self.label):
            raise ConfigError(f"score {self.name!r}: a label has at most {MAX_NAME} characters; use explanation=")
        for given, text in (("explanation", self.explanation), ("by", self.by)):
            if text is not None and not isinstance(text, str):
                raise ConfigError(f"score {self.name!r}: {given}={text!r:.200} is not a text")
        if self.value is not None:
            if not _is_number(self.value):
                raise ConfigError(f"score {self.name!r}: value={self.value!r:.200} is not a number of at least 0")
            object.__setattr__(self, "value", float(self.value))
        elif self.label is None and self.error_type is None:
            raise ConfigError(f"score {self.name!r}: give a value, a label, or both")


def _is_word(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 <= value <= sys.float_info.max


def scored_of(judged: RunResult[Any] | Span | SpanContext | Event | Scored) -> Scored:
    """Return what a score is about.

    Raises:
        ConfigError: it is none of these, or was not traced.
    """
    match judged:
        case Scored():
            return judged
        case RunResult():
            about = {"run_id": judged.run_id, "agent": judged.agent, "version": judged.agent_version}
            return of_run(judged.trace_id, judged.span_id, **about)
        case Event():
            return Scored(trace_id=judged.trace_id, span_id=judged.span_id, run_id=judged.run_id, agent=judged.agent)
        case Span():
            facts: Mapping[str, Any] = getattr(judged, "attributes", None) or {}
            known = {name: facts.get(attribute) for name, attribute in _FACTS.items()}
            return _of_context(judged.get_span_context(), **{k: v for k, v in known.items() if isinstance(v, str)})
        case SpanContext():
            return _of_context(judged)
    raise ConfigError(f"score: {type(judged).__name__} is no result, span, event or Scored")


def of_run(trace_id: str, span_id: str, **facts: str) -> Scored:
    """Return a run as what a score is about. Args: trace_id, span_id: All zero if nothing was traced."""
    return Scored(trace_id=trace_id, span_id=span_id, **facts) if int(trace_id, 16) else Scored(**facts)


def context_of(scored: Scored) -> SpanContext:
    """Return the context of the span that a score is about; invalid ids where none is known."""
    return SpanContext(
        int(scored.trace_id or "0", 16),
        int(scored.span_id or "0", 16),
        is_remote=True,
        trace_flags=TraceFlags(bool(scored.span_id)),
    )


_FACTS: Final = {
    "run_id": RUN_ID,
    "response_id": RESPONSE_ID,
    "agent": AGENT_NAME,
    "version": AGENT_VERSION,
    "model": REQUEST_MODEL,
}


def _of_context(context: SpanContext, **facts: str) -> Scored:
    if not context.is_valid:
        raise ConfigError("score: the span is not recorded, so that nothing can refer to it")
    return Scored(trace_id=format_trace_id(context.trace_id), span_id=format_span_id(context.span_id), **facts)
