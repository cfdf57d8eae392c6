"""Recorded content, and the messages of the request of a model call, each parsed when it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pellucid import semconv

if TYPE_CHECKING:
    from pellucid_exporters.stored.offered_tools import OfferedTools


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Content of one attribute.

    Attributes:
        sequence: Number of the span that has it.
        attribute: Its name.
        text: The text as recorded.
        value: The JSON value; the text itself if it is not JSON, or too long.
    """

    sequence: int
    attribute: str
    text: str
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message of a request, or how many were not recorded.

    Attributes:
        sequence: Number of the span that has the message.
        attribute: Attribute of that span.
        place: Place of the message in the attribute.
        load: Returns all messages of the attribute.
        missing: Number of messages that were not recorded.
        is_new: Whether the previous model call had not yet sent it.
    """

    sequence: int
    attribute: str = semconv.INPUT_MESSAGES
    place: int = 0
    load: Callable[[], Sequence[Any]] = tuple
    missing: int = 0
    is_new: bool = False

    @property
    def message(self) -> Mapping[str, Any] | None:
        """The message; `None` stands for messages that were not recorded, or were deleted since the page began."""
        found = None if self.missing else self.load()[self.place : self.place + 1]
        return found[0] if found else None

    def is_same(self, other: SentMessage) -> bool:
        """Return whether two items have equal messages; what is recorded once is not read for it."""
        if not (self.missing or other.missing):
            mine, theirs = ((item.sequence, item.attribute, item.place) for item in (self, other))
            if mine == theirs:
                return True
        return self.message == other.message


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRequest:
    """Request of a model call, with the parts that earlier spans of the run have recorded."""

    instructions: Recorded | None
    messages: Sequence[SentMessage]
    offered: OfferedTools
    is_recorded: bool

    @property
    def missing(self) -> int:
        """Number of messages that were not recorded."""
        return sum(message.missing for message in self.messages)


def first(messages: list[SentMessage], number: int, sequence: int) -> list[SentMessage]:
    """Return the first messages; those that the chain lacks are counted."""
    kept: list[SentMessage] = []
    remaining = number
    for message in messages:
        weight = message.missing or 1
        if weight > remaining:
            break
        kept.append(message)
        remaining -= weight
    return kept + gap(remaining, sequence)


def gap(missing: int, sequence: int) -> list[SentMessage]:
    """Return what stands for messages that were not recorded; nothing if there are none."""
    return [SentMessage(sequence=sequence, missing=missing)] if missing > 0 else []
