"""Conversation of a run."""

from __future__ import annotations

from collections.abc import Sequence

from pellucid.messages import Message, ToolCall
from pellucid.providers.skills import ActiveSkills


class Conversation:
    """Conversation of a run so far.

    Attributes:
        messages: The messages, oldest first.
        answered_by: Name of the model that answered last.
    """

    __slots__ = ("_skills", "answered_by", "messages")

    def __init__(self, messages: Sequence[Message], skills: ActiveSkills | None, model: str) -> None:
        self.messages = list(messages)
        self.answered_by = model
        self._skills = skills

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """Tool calls of the last message."""
        return self.messages[-1].tool_calls

    def active_skills(self) -> tuple[str, ...]:
        """Return the ids of the active skills, in order of activation."""
        return tuple(self._skills.read(self.messages)) if self._skills is not None else ()
