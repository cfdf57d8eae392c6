"""Bodies of `POST /runs`: an agent, and what it is asked."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from pellucid.errors import ConfigError
from pellucid.messages import load_messages
from pellucid.run.start import Input
from pellucid.server.bodies import Body
from pellucid.server.problems import Problem


class RunBody(Body):
    """A run: `input` is a text, or messages as `dump_messages` returns them."""

    input: str | list[dict[str, JsonValue]]
    agent: str | None = None
    conversation_id: str | None = None


class SubmitBody(RunBody):
    """A durable run to submit; each state in which it waits or has ended is sent to `callbackUrl`."""

    callback_url: str | None = None


def input_of(body: RunBody) -> Input:
    """Return the input of a run.

    Raises:
        Problem: 400, there is no message, or one is invalid.
    """
    if isinstance(body.input, str):
        return body.input
    try:
        messages = load_messages(body.input)
    except ConfigError as error:
        raise Problem(400, str(error), path="input") from error
    if not messages:
        raise Problem(400, "no message", path="input")
    return messages


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
