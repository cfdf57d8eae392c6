"""Bodies of `POST /runs`: an agent, and what it is asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pydantic import Field, JsonValue

from pellucid.caller_checks import checked_tags
from pellucid.errors import ConfigError
from pellucid.messages import ServerToolCall, ServerToolResult, ToolCall, ToolResult, load_messages
from pellucid.run.start import Input
from pellucid.server.bodies import Body
from pellucid.server.problems import Problem

_NOT_OF_USERS: Final = (ToolCall, ToolResult, ServerToolCall, ServerToolResult)


class RunBody(Body):
    """A run: `input` is a text, or messages as `dump_messages` returns them."""

    input: str | list[dict[str, JsonValue]]
    agent: str | None = None
    conversation_id: str | None = None
    tags: list[str] = Field(default_factory=list)


class SubmitBody(RunBody):
    """A durable run to submit; each state in which it waits or has ended is sent to `callbackUrl`."""

    callback_url: str | None = None


def input_of(body: RunBody, roles: Collection[str]) -> Input:
    """Return the input of a run.

    Args:
        body: The body.
        roles: Roles of the messages that callers may send; other messages they could have made up.

    Raises:
        Problem: 400, there is no message, or one is invalid; 403, one has another role.
    """
    if isinstance(body.input, str):
        return body.input
    try:
        messages = load_messages(body.input)
    except ConfigError as error:
        raise Problem(400, str(error), path="input") from error
    if not messages:
        raise Problem(400, "no message", path="input")
    for position, message in enumerate(messages):
        if message.role == "user" and any(isinstance(part, _NOT_OF_USERS) for part in message.parts):
            raise Problem(400, "a user's message has calls or results of tools", path=f"input.{position}.parts")
        if message.role not in roles:
            fault = f"messages of role {message.role!r} are refused; the server's operator can allow them by roles="
            raise Problem(403, fault, path=f"input.{position}.role")
    return messages


def tags_of(body: RunBody) -> Sequence[str]:
    """Return the tags of a run.

    Raises:
        Problem: 400, one is too long, or there are too many.
    """
    try:
        return checked_tags(body.tags)
    except ConfigError as error:
        raise Problem(400, str(error), path="tags") from error


def agent_named(name: str | None, names: Sequence[str]) -> str:
    """Return the name of the agent to run; without a name, that of the only one.

    Raises:
        Problem: 400, there is no agent of that name.
    """
    if name is None and len(names) == 1:
        return names[0]
    if name is None or name not in names:
        fault = "no agent given" if name is None else "unknown agent"
        raise Problem(400, f"{fault}; the agents here are {', '.join(names)}", path="agent")
    return name
