"""Choice of the demo's model: a script, unless a model or a server is configured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pellucid.models.names import resolve
from pellucid_commands.demo.script import scripted_model

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid import Model

SERVERS: Final = {"OPENAI_BASE_URL": "openai:gpt-6-luna", "ANTHROPIC_BASE_URL": "anthropic:claude-haiku-5-5"}
"""Variables that point to a server, and the model to request there."""

KEYS: Final = {"OPENAI_API_KEY": "openai:gpt-6-luna", "ANTHROPIC_API_KEY": "anthropic:claude-haiku-5-5"}


def choose(name: str | None, repository: Path) -> tuple[Model, list[str]]:
    """Return the model and its description.

    An API key in the environment alone is not consent to spend money on a demo: it is mentioned, not used.

    Raises:
        ConfigError: the named model cannot be created; the message names the missing part.
    """
    server = next((variable for variable in SERVERS if os.environ.get(variable)), None)
    if name is None and server is not None:
        name = SERVERS[server]
    if name is not None:
        model = resolve(name)
        address = getattr(model, "server_address", None)
        return model, [f"{name}{f' at {address}' if address else ''}{f', because {server} is set' if server else ''}"]
    description = ["a script that repeats the results of the tools: no key, no tokens, no cost"]
    description += [
        f"({variable} is set: pellucid demo --model {real} asks a real one, which costs)"
        for variable, real in KEYS.items()
        if os.environ.get(variable)
    ]
    return scripted_model(repository), description
