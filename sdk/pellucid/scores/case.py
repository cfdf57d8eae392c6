"""A case: a question to ask an agent again, and what is known about its answer."""

from __future__ import annotations

from dataclasses import dataclass

from pellucid.messages import Message
from pellucid.types import JSONValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question to ask an agent again, and what is known about its answer.

    Attributes:
        id: Name within its set, 1 to 128 characters.
        input: The question: a text, or messages.
        expected: Expected answer, or whatever the scorers of the set compare with; None if nothing is known.
        tags: Words to select cases by, such as `refunds`.
        source: Id of the run that it was made from; empty if a person wrote it.
        note: For people; not used.
    """

    id: str
    input: str | tuple[Message, ...]
    expected: JSONValue = None
    tags: tuple[str, ...] = ()
    source: str = ""
    note: str = ""
