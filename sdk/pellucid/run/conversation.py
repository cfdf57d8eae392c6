"""The conversation of a run."""

from __future__ import annotations

from collections.abc import Sequence

from pellucid.messages import Message, ToolCall
from pellucid.providers.skills import ActiveSkills


class Conversation:
    """The conversation so far.

    Attributes:
        messages: Its messages, oldest first.
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
        """Return the ids of the skills that the conversation has activated, the latest last."""
        return tuple(self._skills.read(self.messages)) if self._skills is not None else ()
