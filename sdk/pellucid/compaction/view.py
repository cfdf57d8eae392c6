"""A conversation as requests have it: its messages in steps, some of them narrowed or left out."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby, islice

from pellucid.compaction.options import Context
from pellucid.compaction.strategies import Strategy
from pellucid.errors import ConfigError
from pellucid.failures import describe
from pellucid.messages import Message, ToolCall, ToolResult
from pellucid.tools.names import LAZY_DISCOVERY, LOAD_SKILL, TOOL_SEARCH

_LASTING = frozenset((LOAD_SKILL, TOOL_SEARCH, LAZY_DISCOVERY))
"""Tools whose results the model needs as long as the run goes on."""


@dataclass(slots=True, eq=False)
class Step:
    """A message of the user, or an answer with the results of its calls.

    Attributes:
        index: Index of its first message in the conversation.
        turn: Number of the turn that it is of.
        opens: Whether it is the message of the user that opens the turn.
        originals: Its messages.
        messages: Those of them that requests have.
        size: Estimated tokens of what requests have.
        results: Those of them that are results of tools.
        is_pinned: Whether it stays whole.
        changed: Number of its messages that requests do not have as they are.
    """

    index: int
    turn: int
    opens: bool
    originals: list[Message] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    size: int = 0
    results: int = 0
    is_pinned: bool = False
    changed: int = 0

    @property
    def end(self) -> int:
        """Index of the first message after it."""
        return self.index + len(self.originals)


@dataclass(slots=True)
class Cut:
    """Messages that one strategy has left out in one cut.

    Attributes:
        strategy: Name of its class.
        steps: The steps that have become shorter or are gone.
        removed: Those of them that are gone.
        tokens: Estimated tokens that were saved.
    """

    strategy: str
    steps: list[Step] = field(default_factory=list)
    removed: list[Step] = field(default_factory=list)
    tokens: int = 0

    @property
    def messages(self) -> int:
        """Number of messages of the steps."""
        return sum(len(step.originals) for step in self.steps)

    @property
    def ranges(self) -> list[list[int]]:
        """Indexes of the first and last messages of each group of consecutive ones."""
        ranges: list[list[int]] = []
        for step in self.steps:
            if ranges and ranges[-1][1] == step.index - 1:
                ranges[-1][1] = step.end - 1
            else:
                ranges.append([step.index, step.end - 1])
        return ranges


class View:
    """Part of a conversation that requests have.

    Attributes:
        steps: The steps that are left, oldest first.
        size: Estimated tokens of their messages, and of the note.
        results: Those of them that are results of tools.
        shortened: Number of messages that are shorter.
        gone: Number of messages of the conversation that are gone.
        is_cut: Whether the conversation has a result of which messages have only the beginning.
        note: Message in place of those that are gone.
    """

    def __init__(self, context: Context, estimate: Callable[[Sequence[Message]], tuple[int, int]]) -> None:
        self._context = context
        self._estimate = estimate
        self._boundaries = [0] * len(context.strategies)
        self._read = 0
        self._lasting: set[tuple[str, str]] = set()
        self._has_user = False
        self.steps: list[Step] = []
        self._messages: list[Message] | None = []
        self.size = 0
        self.results = 0
        self.shortened = 0
        self.gone = 0
        self.is_cut = False
        self.note: Message | None = None
        self._digest = ""
        self._undigested: list[Message] = []

    @property
    def left_out(self) -> int:
        """Number of messages of the conversation that are shorter or gone."""
        return self.gone + self.shortened

    def step_size(self, most: int) -> int:
        """Return the mean size of the last steps that are whole, of so many at most."""
        whole = list(islice((step.size for step in reversed(self.steps) if not step.changed), most))
        return sum(whole) // max(1, len(whole))

    @property
    def digest(self) -> str:
        """Hash of the messages that are gone. Only summaries need it, so it is made when it is asked for."""
        for message in self._undigested:
            content = json.dumps(message.to_dict(), default=str, sort_keys=True)
            self._digest = blake2b(f"{self._digest}{content}".encode("utf-8", "replace"), digest_size=16).hexdigest()
        self._undigested = []
        return self._digest

    @property
    def boundaries(self) -> list[tuple[str, int]]:
        """Name of each strategy, and the index of the message up to which it was applied."""
        return [(_name(each), end) for each, end in zip(self._context.strategies, self._boundaries, strict=True)]

    def read(self, messages: Sequence[Message], until: int | None = None) -> bool:
        """Read the new messages of the conversation; return whether there were any."""
        end = len(messages) if until is None else until
        for index in range(self._read, end):
            self._add(index, messages[index])
        is_new, self._read = self._read < end, max(self._read, end)
        return is_new

    def _add(self, index: int, message: Message) -> None:
        is_asked, last = message.role in ("user", "system"), self.steps[-1] if self.steps else None
        if last is not None and (message.role == "tool" or is_asked) and last.opens == is_asked:
            step = last
        else:
            turn = 0 if last is None else last.turn + is_asked
            step = Step(index, turn, is_asked)
            self.steps.append(step)
        step.originals.append(message)
        step.messages.append(message)
        if self._messages is not None:
            self._messages.append(message)
        tokens, results = self._estimate([message])
        step.size, step.results = step.size + tokens, step.results + results
        self.size, self.results = self.size + tokens, self.results + results
        if message.role == "tool":
            self.is_cut = self.is_cut or any(result.whole is not None for result in message.tool_results)
        is_first = message.role == "user" and not self._has_user
        self._has_user = self._has_user or is_first
        step.is_pinned = step.is_pinned or is_first or self._keeps(message, index) or self._lasts(step, message)

    def _keeps(self, message: Message, index: int) -> bool:
        if message.role == "system":
            return True
        if self._context.keep is None:
            return False
        try:
            return bool(self._context.keep(message))
        except Exception as error:
            raise ConfigError(f"Context(keep=...) failed on message {index}: {describe(error)}") from error

    def _lasts(self, step: Step, message: Message) -> bool:
        """Return whether a message has the result of a call whose like has not been seen, such as a loaded skill."""
        if message.role != "tool":
            return False
        calls = {call.id: call for answer in step.originals for call in answer.tool_calls if call.name in _LASTING}
        if not calls:
            return False
        asked = {
            (call.name, json.dumps(call.arguments, sort_keys=True, default=str))
            for result in message.tool_results
            if not result.is_error and (call := calls.get(result.id)) is not None
        }
        is_new = not asked <= self._lasting
        self._lasting |= asked
        return is_new

    def messages(self) -> tuple[Message, ...]:
        """Return the messages of a request."""
        if self._messages is None:
            self._messages = self._assembled()
        return tuple(self._messages)

    def _assembled(self) -> list[Message]:
        if self.note is None:
            return [message for step in self.steps for message in step.messages]
        boundary = self._gone_until()
        place = next((n for n, step in enumerate(self.steps) if step.index >= boundary), len(self.steps))
        if place and self.steps[place - 1].originals[-1].role == "system":
            place -= 1  # vendors want the answer right after it
        before = [message for step in self.steps[:place] for message in step.messages]
        return [*before, self.note, *(message for step in self.steps[place:] for message in step.messages)]

    def _gone_until(self) -> int:
        ends = zip(self._context.strategies, self._boundaries, strict=True)
        return max((end for strategy, end in ends if is_of_turns(strategy)), default=0)

    def set_note(self, text: str | None) -> None:
        """Put a note in place of the messages that are gone."""
        if self.note is not None:
            self.size -= self._estimate([self.note])[0]
        self.note = Message("user", text) if text is not None else None
        self._messages = None
        if self.note is not None:
            self.size += self._estimate([self.note])[0]

    def apply(self, place: int, is_enough: Callable[[], bool], recent: int) -> Cut:
        """Apply a strategy to the oldest steps until that is enough; the `recent` last steps stay as they are."""
        strategy = self._context.strategies[place]
        cut = Cut(_name(strategy))
        last = self.steps[-recent].index if len(self.steps) >= recent else 0
        for group in self._groups(strategy, self._boundaries[place]):
            if group[-1].end > last or is_enough():
                break
            self._narrow(strategy, group, cut)
            self._boundaries[place] = max(self._boundaries[place], group[-1].end)
        self._remove(cut)
        return cut

    def _groups(self, strategy: Strategy, boundary: int) -> Iterator[list[Step]]:
        """Yield the steps that a strategy gets together; one that leaves steps in place gets each of them once."""
        if not is_of_turns(strategy):
            begin = bisect_right(self.steps, boundary, key=lambda step: step.end)
            yield from ([step] for step in self.steps[begin:])
            return
        latest = self.steps[-1].turn if self.steps else 0
        for turn, group in groupby(self.steps, key=lambda step: step.turn):
            steps = list(group)
            if turn < latest:
                yield steps
            else:
                yield from ([step] for step in steps if not step.opens)

    def _narrow(self, strategy: Strategy, group: Sequence[Step], cut: Cut) -> None:
        steps = [step for step in group if not step.is_pinned]
        for step in steps:
            before = step.messages
            after = _narrowed(strategy, before)
            if after is before:
                continue
            size, results = self._estimate(after)
            cut.tokens += step.size - size
            self.size, self.results = self.size + size - step.size, self.results + results - step.results
            step.messages, step.size, step.results, self._messages = after, size, results, None
            cut.steps.append(step)
            changed = len(step.originals) - len({*map(id, step.originals)} & {*map(id, after)}) if after else 0
            self.shortened, step.changed = self.shortened + changed - step.changed, changed
            if not after:
                cut.removed.append(step)
                self.gone += len(step.originals)

    def _remove(self, cut: Cut) -> None:
        if not cut.removed:
            return
        self._undigested += [message for step in cut.removed for message in step.originals]
        self.steps = [step for step in self.steps if step.messages]

    def restore(self, boundaries: Sequence[Sequence[object]]) -> bool:
        """Leave out what was left out before a pause; return whether the strategies are the same as then."""
        if [name for name, _ in boundaries] != [name for name, _ in self.boundaries]:
            return False
        for place, (_, end) in enumerate(boundaries):
            strategy, until = self._context.strategies[place], int(str(end))
            rest = next((step for step in self.steps if step.index >= until), None)
            going_on = rest.turn if rest is not None and not rest.opens else None
            cut = Cut(_name(strategy))
            for step in list(self.steps):
                if step.index < until and not (is_of_turns(strategy) and step.opens and step.turn == going_on):
                    self._narrow(strategy, [step], cut)
            self._remove(cut)
            self._boundaries[place] = until
        return True


def _narrowed(strategy: Strategy, messages: list[Message]) -> list[Message]:
    """Return what a strategy makes of the messages of a step; the same list if it leaves them as they are.

    Raises:
        ConfigError: it fails, or tears calls and results apart.
    """
    try:
        after = list(strategy.narrow(messages))
    except Exception as error:
        raise ConfigError(f"the strategy {_name(strategy)} of Context failed: {describe(error)}") from error
    if len(after) == len(messages) and all(new is old for new, old in zip(after, messages, strict=True)):
        return messages
    if _unpaired(after) and not _unpaired(messages):
        raise ConfigError(f"the strategy {_name(strategy)} of Context separates calls of tools from their results")
    return after


def _unpaired(messages: Sequence[Message]) -> bool:
    parts = [part for message in messages for part in message.parts]
    calls = sorted(part.id or "" for part in parts if isinstance(part, ToolCall))
    return calls != sorted(part.id for part in parts if isinstance(part, ToolResult))


def _name(strategy: Strategy) -> str:
    return type(strategy).__name__


def is_of_turns(strategy: Strategy) -> bool:
    """Return whether a strategy gets whole turns."""
    return bool(getattr(strategy, "of_turns", False))
