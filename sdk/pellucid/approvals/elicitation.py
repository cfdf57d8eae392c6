"""Questions of MCP servers to a person, asked while they work on a call (elicitation), and what answers them."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from pellucid.context import Identity
from pellucid.types import JSONObject

Mode: TypeAlias = Literal["form", "url"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Elicitation:
    """Question of an MCP server to a person.

    Source: the section "Elicitation" of the Model Context Protocol, since 2025-06-18.

    Attributes:
        provider_id: Id of the provider.
        mode: `form` asks for values; `url` asks a person to open an address, where the server does the rest.
        message: Question of the server.
        schema: JSON Schema of the values, an object without nested ones; None for `url`.
        url: Address to open; None for `form`. Show it in full, and open it only if the person agrees.
        identity: Identity on whose behalf the run acts, as far as it is known.
    """

    provider_id: str
    mode: Mode
    message: str
    schema: JSONObject | None = None
    url: str | None = None
    identity: Identity | None = None


class InputRequired(Exception):
    """A call cannot go on without answers; its run may pause for them.

    Attributes:
        questions: Questions by the server's keys.
        state: State that the server gets back with the answers.
    """

    def __init__(self, questions: Mapping[str, Elicitation], state: str | None) -> None:
        super().__init__("the call needs input of a person")
        self.questions = questions
        self.state = state


@dataclass(frozen=True, slots=True)
class Listening:
    """Questions of a call in a run.

    Attributes:
        can_pause: Whether the run may pause for them.
        is_durable: Whether the run must not wait for them in this process.
        answers: Answers that were given while the run was paused, as `ElicitResult` of the protocol, by key.
        modes: The modes of their questions, by key.
        state: State that the server gets back with them.
    """

    can_pause: bool
    is_durable: bool
    answers: Mapping[str, JSONObject] = field(default_factory=dict)
    modes: Mapping[str, Mode] = field(default_factory=dict)
    state: str | None = None


LISTENING: Final[ContextVar[Listening | None]] = ContextVar("pellucid_elicitation", default=None)
"""Set for a call of a run."""
