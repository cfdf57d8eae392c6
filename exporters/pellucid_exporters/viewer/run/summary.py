"""The first screen of a run: question, answer, and model calls with their tokens and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pellucid import semconv
from pellucid.semconv.budgets import BUDGET_NAMES, BUDGET_USED
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.rows import RunRow, SpanRow, count_of
from pellucid_exporters.stored.sent_messages import SentMessage

LONGEST: Final = 600
"""Characters of the question and of the answer on the first screen."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call as the page lists it; the span's attributes have the rest."""

    number: int
    span: SpanRow
    messages: int | None
    tools: int | None
    left_out: int
    finish: str

    def get(self, attribute: str) -> Any:
        """Return an attribute of the span, or `None`."""
        return self.span.attributes.get(attribute)

    def tokens(self, attribute: str) -> int:
        """Return a number of tokens, 0 if it is unknown."""
        return count_of(self.span.attributes, attribute) or 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages of a run: what its last model call got, and the answer; without recorded requests, what the run got."""

    messages: Sequence[SentMessage]
    calls: Sequence[SpanRow]
    question: str
    answer: str


def conversation(content: RunContent, spans: Sequence[SpanRow], root: SpanRow | None) -> Conversation:
    """Return the conversation of a run."""
    calls = [span for span in spans if span.phase == semconv.INFERENCE]
    ends = [*calls[-1:], *([root] if root is not None else [])]
    content.load(ends, [semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES])
    sent = content.request(calls[-1]) if calls else None
    messages = list(sent.messages) if sent is not None and sent.is_recorded else []
    if not messages and root is not None:
        messages = _recorded(content, root, semconv.INPUT_MESSAGES)
    answers = next(filter(None, (_recorded(content, span, semconv.OUTPUT_MESSAGES) for span in ends)), [])
    asked = _recorded(content, root, semconv.INPUT_MESSAGES) if root is not None else messages
    return Conversation([*messages, *answers], calls, text_of(asked or messages, "user"), text_of(answers, "assistant"))


def _recorded(content: RunContent, span: SpanRow, attribute: str) -> list[SentMessage]:
    """Return the messages of an attribute."""
    recorded = content.get(span, attribute)
    if recorded is None or not isinstance(recorded.value, list):
        return []
    items, sequence = recorded.value, recorded.sequence
    return [
        SentMessage(sequence=sequence, attribute=attribute, place=place, load=lambda: items)
        for place, item in enumerate(items)
        if isinstance(item, Mapping)
    ]


def text_of(messages: Sequence[SentMessage], role: str) -> str:
    """Return the text of the last message with a role."""
    for item in reversed(messages):
        message = item.message or {}
        parts = message.get("parts")
        if message.get("role") == role and isinstance(parts, list):
            texts = (part.get("content") for part in parts if isinstance(part, dict) and part.get("type") == "text")
            return "\n".join(text for text in texts if isinstance(text, str))
    return ""


def model_calls(spans: Sequence[SpanRow]) -> list[ModelCall]:
    """Return the model calls of a run."""
    composed: dict[int | None, SpanRow] = {}
    calls: list[ModelCall] = []
    for span in spans:
        if span.phase == semconv.COMPOSE:
            composed[span.iteration] = span
        elif span.phase == semconv.INFERENCE:
            attributes = composed[span.iteration].attributes if span.iteration in composed else {}
            reasons = span.attributes.get(semconv.RESPONSE_FINISH_REASONS)
            finish = ", ".join(map(str, reasons)) if isinstance(reasons, list) else ""
            messages, tools = (count_of(attributes, name) for name in (semconv.COMPOSE_MESSAGES, semconv.COMPOSE_TOOLS))
            left_out = count_of(attributes, semconv.COMPOSE_LEFT_OUT) or 0
            calls.append(ModelCall(len(calls) + 1, span, messages, tools, left_out, finish or span.status))
    return calls


def budgets(root: SpanRow | None) -> list[tuple[str, float]]:
    """Return the budgets that a run shared with others, and the share of each that was spent when it ended."""
    found = root.attributes if root is not None else {}
    names, used = found.get(BUDGET_NAMES), found.get(BUDGET_USED)
    if not isinstance(names, list) or not isinstance(used, list):
        return []
    return [
        (str(name), float(share)) for name, share in zip(names, used, strict=False) if isinstance(share, int | float)
    ]


def related(run: RunRow, rows: Sequence[RunRow]) -> list[tuple[str, RunRow]]:
    """Return the other runs of the same trace, each with what it is to this one."""
    found: list[tuple[str, RunRow]] = []
    for row in rows:
        if row.run_id == run.parent_run_id:
            found.append(("outer run", row))
        elif row.parent_run_id == run.run_id:
            found.append(("nested run", row))
        elif row.run_id != run.run_id:
            found.append(("earlier" if row.start < run.start else "later", row))
    return found
