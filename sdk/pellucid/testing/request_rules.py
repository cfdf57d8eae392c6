"""Rules for requests that OpenAI, Anthropic and Gemini share: what breaks one of them, a vendor refuses.

They hold for `ModelRequest`s, and by way of `Turn` for the vendors' own formats. What adapters put right is not broken:
consecutive messages of one role, blank texts among others, the position of a system message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pellucid.errors import ModelError
from pellucid.messages import Message, TextPart, ToolCall, ToolDefinition, ToolResult
from pellucid.models import ModelRequest
from pellucid.tools.names import NAME

_ALLOWED: Final = {
    "assistant": {"calls", "content"},
    "system": {"content"},
    "tool": {"results"},
    "user": {"results", "content"},
}
"""Members that messages of a role may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A message, as far as the rules go.

    Attributes:
        role: Its role.
        calls: Ids of its tool calls; None for a call without an id.
        results: Ids of the calls whose results it has.
        content: Whether it has something else, other than blank text.
    """

    role: str
    calls: Sequence[str | None] = ()
    results: Sequence[str] = ()
    content: bool = False


def check_request(model: str, request: ModelRequest) -> None:
    """Check a request as the vendors do.

    Raises:
        ModelError: they would refuse it; the error names each broken rule, and the message that breaks it.
    """
    if broken := [*broken_by_tools(request.tools), *broken_by_turns([*map(_turn, request.messages)])]:
        raise ModelError(
            model,
            f"OpenAI, Anthropic or Gemini would refuse the request: {'; '.join(broken)}",
            error_type="invalid_request",
            error_kind="invalid_request",
        )


def broken_by_tools(tools: Iterable[object]) -> Iterator[str]:
    """Yield the rules that the tools of a request break."""
    names: set[str] = set()
    for tool in tools:
        if not isinstance(tool, ToolDefinition):
            continue  # the vendor's own
        if NAME.fullmatch(tool.name) is None:
            yield f"a tool is named {tool.name!r}; names have 1 to 64 letters, digits, '_' and '-'"
        if tool.name in names:
            yield f"two tools are named {tool.name!r}"
        names.add(tool.name)


def broken_by_turns(turns: Sequence[Turn]) -> Iterator[str]:
    """Yield the rules that the messages of a request break."""
    said = [turn for turn in turns if turn.role != "system"]
    if not any(turn.content or turn.calls or turn.results for turn in said):
        yield "there is no message with content"
        return
    if said[0].role == "assistant":
        yield "the conversation begins with an answer"
    if said[-1].role == "assistant" and not said[-1].calls:
        yield "the conversation ends with an answer"
    pairs = _Pairs()
    for number, turn in enumerate(turns):
        for problem in (*_misplaced(turn), *pairs.add(turn)):
            yield f"messages[{number}]: {problem}"
    yield from pairs.unanswered("at the end")


def _misplaced(turn: Turn) -> Iterator[str]:
    for kind in ("calls", "results", "content"):
        if getattr(turn, kind) and kind not in _ALLOWED.get(turn.role, ()):
            yield f"a message of role {turn.role!r} has {'other content' if kind == 'content' else kind}"


class _Pairs:
    """Calls and their results, in the order of the messages."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._open: list[str] = []
        self._answered: set[str] = set()

    def add(self, turn: Turn) -> Iterator[str]:
        """Yield the rules that the next message breaks."""
        for result in turn.results:
            if result in self._open:
                self._open.remove(result)
                self._answered.add(result)
            else:
                again = "a second result of" if result in self._answered else "a result without"
                yield f"{again} the call {result!r}; results follow the answer with their calls, one for each"
        if turn.content or not turn.results:
            yield from self.unanswered("before it")
        if turn.role == "assistant":
            self._answered.clear()
        for call in turn.calls:
            if not call:
                yield "a call has no id"
                continue
            if call in self._ids:
                yield f"two calls have the id {call!r}"
            self._ids.add(call)
            self._open.append(call)

    def unanswered(self, place: str) -> Iterator[str]:
        """Yield the calls that should have had their results by now, and forget them."""
        if self._open:
            yield f"no result {place} of the calls {', '.join(map(repr, self._open))}"
            self._open.clear()


def _turn(message: Message) -> Turn:
    parts = message.parts
    return Turn(
        role=message.role,
        calls=[part.id for part in parts if isinstance(part, ToolCall)],
        results=[part.id for part in parts if isinstance(part, ToolResult)],
        content=any(
            bool(part.content.strip()) if isinstance(part, TextPart) else not isinstance(part, ToolCall | ToolResult)
            for part in parts
        ),
    )
