"""Lines of the tree of a run. A line is a list of styled words, shared by terminal and plain text."""

from __future__ import annotations

import json
import re
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, StatusCode

from pellucid import semconv
from pellucid.text import clean

WIDEST_NAME: Final = 52
LONGEST_CONTENT: Final = 400
LEAST_COST: Final = 0.0001
"""US dollars below which a cost is shown as small, without its amount."""

_OWN_WORDS: Final = re.compile(r"^(?:discovery of tools from provider|call of model) '.*?' failed: ")
"""Prefix of Pellucid's error messages, redundant in a line."""


class Word(NamedTuple):
    """Styled part of a line.

    Attributes:
        style: One of `tree`, `name`, `number`, `fact`, `bad`, `content`, or empty.
    """

    text: str
    style: str = ""


Line = list[Word]

Key: TypeAlias = tuple[int, int]
"""Trace id and span id; a span id alone is not unique, because callers can choose it."""


@dataclass(slots=True)
class Node:
    """A span and its children, in start order."""

    span: ReadableSpan
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Tree:
    """A run to be shown.

    Attributes:
        root: Span of the run, with those below it.
        omissions: Remarks about what is left out.
    """

    root: Node
    omissions: Sequence[str] = ()

    @property
    def key(self) -> Key:
        """Identity of the run."""
        context = self.root.span.get_span_context()
        assert context is not None
        return key_of(context)

    def lines(self, *, content: bool = False) -> list[Line]:
        """Return the lines of the tree and its omissions; with `content`, the recorded input and output too."""
        return [*lines(self.root, content=content), *([Word(omission, "tree")] for omission in self.omissions)]


def key_of(context: SpanContext) -> Key:
    """Return the identity of a span."""
    return context.trace_id, context.span_id


def lines(root: Node, *, content: bool = False) -> list[Line]:
    """Return the lines of a tree; with `content`, the recorded input and output too."""
    result: list[Line] = []
    for line, below, span in rows(root):
        result.append(line)
        if content:
            result += [
                [Word(below, "tree"), Word(f"{word:<3} {_short(text)}", "content")] for word, text in recorded(span)
            ]
    return result


def rows(root: Node) -> Iterator[tuple[Line, str, ReadableSpan]]:
    """Yield the line of each span, the prefix of what is below it, and the span."""
    placed = list(_placed(root))
    width = min(WIDEST_NAME, max(len(prefix) + len(clean(node.span.name)) for prefix, _, node in placed)) + 2
    for prefix, below, node in placed:
        yield _line(prefix, node.span, width), below, node.span


def recorded(span: ReadableSpan) -> Iterator[tuple[str, str]]:
    """Yield the recorded input and output of a span, each as `in` or `out` and its text."""
    attributes: Mapping[str, Any] = span.attributes or {}
    for word, names in (
        ("in", (semconv.INPUT_MESSAGES, semconv.TOOL_CALL_ARGUMENTS, semconv.INPUT)),
        ("out", (semconv.OUTPUT_MESSAGES, semconv.TOOL_CALL_RESULT, semconv.OUTPUT)),
    ):
        for name in names:
            if (text := attributes.get(name)) is not None:
                yield word, str(text)


def fitted(tree: Sequence[Line], width: int) -> list[Line]:
    """Return lines of at most `width` columns: content is wrapped, everything else is cut.

    Names are shortened first, so that durations stay whole.
    """
    return [
        piece
        for line in tree
        for piece in (_folded(line, width) if _is_content(line) else [_cut(_narrowed(line, width), width)])
    ]


def plain(tree: Sequence[Line]) -> str:
    """Return lines as plain text."""
    return "\n".join("".join(word.text for word in line).rstrip() for line in tree)


def duration(seconds: float) -> str:
    """Format a duration, in the unit to which it is rounded."""
    if round(seconds, 2) >= 60:  # noqa: PLR2004  (a minute)
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    if round(seconds, 3) >= 1:
        return f"{seconds:.2f} s"
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f} ms" if round(milliseconds, 1) >= 10 else f"{milliseconds:.1f} ms"  # noqa: PLR2004


def counted(count: int, noun: str) -> str:
    """Format a count with its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def elapsed(span: ReadableSpan) -> float:
    """Return the duration of a span in seconds; until now if it has not ended."""
    if span.start_time is None:
        return 0.0
    end = span.end_time if span.end_time is not None else time.time_ns()
    return max(0, end - span.start_time) / 1e9


def _placed(root: Node) -> Iterator[tuple[str, str, Node]]:
    """Yield each node with its prefix and the prefix of its children, at any depth."""
    waiting = [("", "", root)]
    while waiting:
        prefix, indent, node = waiting.pop()
        yield prefix, indent + ("│  " if node.children else "   "), node
        branch, below = "└─ ", "   "
        for child in reversed(node.children):
            waiting.append((indent + branch, indent + below, child))
            branch, below = "├─ ", "│  "


def _line(prefix: str, span: ReadableSpan, width: int) -> Line:
    name = clean(span.name)
    room = max(8, width - len(prefix) - 2)
    if len(name) > room:
        name = f"{name[: room - 1]}…"
    attributes: Mapping[str, Any] = span.attributes or {}
    iteration = _number(attributes, semconv.ITERATION)
    took = duration(elapsed(span)) if span.end_time is not None else f"{elapsed(span):.1f} s …"
    return [
        Word(prefix, "tree"),
        Word(name.ljust(width - len(prefix)), "name"),
        Word((f"[{iteration}]" if iteration is not None else "").ljust(5)),
        Word(took.rjust(10), "number"),
        *([Word(f"  {clean(problem)}", "bad")] if (problem := _problem(span, attributes)) else []),
        *(Word(f"  {clean(fact)}", "fact") for fact in _facts(attributes)),
    ]


def _is_content(line: Line) -> bool:
    return line[-1].style == "content"


def _folded(line: Line, width: int) -> list[Line]:
    branch, content = line
    room = max(20, width - len(branch.text))
    pieces = textwrap.wrap(content.text, room, subsequent_indent="    ", break_on_hyphens=False)
    return [[branch, Word(piece, content.style)] for piece in pieces]


def _narrowed(line: Line, width: int) -> Line:
    """Shorten the name, if there is one, until the columns up to the duration fit, with room for a `…`."""
    styles = [word.style for word in line]
    if "number" not in styles:
        return line
    excess = sum(len(word.text) for word in line[: styles.index("number") + 1]) - (width - 1)
    if excess <= 0:
        return line
    return [word._replace(text=_shortened(word.text, excess)) if word.style == "name" else word for word in line]


def _shortened(name: str, excess: int) -> str:
    """Return a padded name shortened by a number of columns, followed by at least one space."""
    room = max(2, len(name) - excess)
    name = name.rstrip()
    return (name if len(name) < room else f"{name[: room - 2]}…").ljust(room)


def _cut(line: Line, width: int) -> Line:
    if sum(len(word.text) for word in line) <= width:
        return line
    result, room = [], width - 1
    for word in line:
        result.append(word._replace(text=word.text[:room]))
        room -= len(result[-1].text)
    return [*result, Word("…", line[-1].style)]


def _facts(attributes: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts to show of a span, where its attributes have them."""
    phase = attributes.get(semconv.PHASE)
    cache = attributes.get(semconv.DISCOVERY_CACHE)
    if phase == semconv.DISCOVERY and cache not in (None, "none"):
        yield str(cache)
    if phase == semconv.DISPATCH and semconv.PROVIDER_ID in attributes:
        yield f"from {attributes[semconv.PROVIDER_ID]}"
    yield from _approval(attributes)
    for name, unit in (
        (semconv.DISCOVERY_TOOL_COUNT, "tool"),
        (semconv.COMPOSE_TOOLS, "tool"),
        (semconv.COMPOSE_MESSAGES, "message"),
        (semconv.ITERATIONS, "iteration"),
    ):
        if (count := _number(attributes, name)) is not None:
            yield counted(count, unit)
    into, out = _number(attributes, semconv.USAGE_INPUT_TOKENS), _number(attributes, semconv.USAGE_OUTPUT_TOKENS)
    if into is not None or out is not None:
        yield f"{'?' if into is None else f'{into:,}'}→{'?' if out is None else f'{out:,}'} tokens"
    if isinstance(cost := attributes.get(semconv.COST_USD), float):
        yield f"${cost:.4f}" if cost >= LEAST_COST else f"<${LEAST_COST}"
    if attributes.get(semconv.CATALOG_CHANGED):
        yield "changed"


def _approval(attributes: Mapping[str, Any]) -> Iterator[str]:
    """Yield an approval decision, or that the call is waiting for one."""
    if attributes.get(semconv.STOP_REASON) == "awaiting_approval":
        yield "waits for approval"
    outcome = attributes.get(semconv.APPROVAL_OUTCOME)
    if outcome is None:
        return
    by, waited = attributes.get(semconv.APPROVAL_DECIDED_BY), attributes.get(semconv.APPROVAL_WAITED)
    yield f"{outcome}{f' by {by}' if by else ''}{f' after {duration(waited)}' if isinstance(waited, float) else ''}"


def _number(attributes: Mapping[str, Any], name: str) -> int | None:
    """Return a numeric attribute; spans of other libraries may have other types."""
    value = attributes.get(name)
    return value if isinstance(value, int) else None


def _problem(span: ReadableSpan, attributes: Mapping[str, Any]) -> str:
    outcome = attributes.get(semconv.OUTCOME, "")
    error = attributes.get(semconv.ERROR_TYPE)
    if error is None and outcome in ("", semconv.COMPLETED):
        return "failed" if span.status.status_code is StatusCode.ERROR else ""
    text = _OWN_WORDS.sub("", (span.status.description or "").split("\n", 1)[0])
    words = [str(outcome or "failed").upper()]
    name = str(error or "").rpartition(".")[2]  # an exception's without its module
    if text and text.startswith(f"{name}: "):
        name = ""
    return " ".join([*words, *([f"{name}{':' if text else ''}"] if name else []), *([text] if text else [])])


def _short(content: str) -> str:
    """Return recorded JSON in short form, as plain text if it is a string."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        value = content
    text = value if isinstance(value, str) else content
    text = " ".join(text.split())
    return clean(text if len(text) <= LONGEST_CONTENT else f"{text[:LONGEST_CONTENT]}… ({len(text):,} characters)")
