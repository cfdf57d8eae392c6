"""Instructions that vary: functions of the context, evaluated for each request; loaded when an agent has some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pellucid.errors import ConfigError, InstructionsError
from pellucid.run.context_functions import call_function
from pellucid.run.state import Run, Setup
from pellucid.telemetry import Boundary
from pellucid.tools.functions import name_of
from pellucid.types import JSONValue

if TYPE_CHECKING:
    from pellucid.telemetry.content import Capturer


def parts_of(instructions: Any) -> tuple[str | None, tuple[Callable[..., Any], ...]]:
    """Return the text of an agent's instructions that never changes, and the functions for the rest, in order."""
    parts = _listed(instructions)
    texts = [part for part in parts if isinstance(part, str)]
    return "\n\n".join(filter(None, texts)) or None, tuple(part for part in parts if not isinstance(part, str))


def added(instructions: Any, setup: Setup, function: Any) -> tuple[tuple[Any, ...], Setup]:
    """Return an agent's option `instructions` and its configuration, with one more function.

    Raises:
        ConfigError: it is not a function.
    """
    if not callable(function):
        raise ConfigError(f"Agent {setup.name!r}: instructions() decorates a function, not {function!r}")
    return (*_listed(instructions), function), replace(setup, varying=(*setup.varying, function))


def _listed(instructions: Any) -> list[Any]:
    if instructions is None:
        return []
    return [instructions] if isinstance(instructions, str) or callable(instructions) else list(instructions)


async def evaluate(run: Run, b: Boundary) -> tuple[str | None, dict[str, JSONValue]]:
    """Return the instructions of a request, and what to record of the functions.

    What never changes comes first, for prompt caches: the agent's texts, then those of its functions, then the notices
    of providers.

    Raises:
        InstructionsError: a function failed, or returned something else than a text.
    """
    texts = [await _text_of(run, function) for function in run.setup.varying]
    whole = "\n\n".join(filter(None, (run.setup.instructions, *texts, *run.notices))) or None
    if not (texts and b.records):
        return whole, {}
    varying = [
        {"function": name_of(function), "text": text} for function, text in zip(run.setup.varying, texts, strict=True)
    ]
    return whole, run.scope.guarded("recording", _recorded, b, run.scope.capturer, whole, varying) or {}


def _recorded(b: Boundary, capturer: Capturer, whole: str | None, varying: Any) -> dict[str, JSONValue]:
    digest = capturer.value(whole).digest
    b.note(instructions_digest=digest)
    return {"instructions": {"digest": digest, "functions": capturer.clean(varying)}}


async def _text_of(run: Run, function: Callable[..., Any]) -> str | None:
    text = await call_function(run, function, InstructionsError)
    if text is None or isinstance(text, str):
        return text
    raise InstructionsError(name_of(function), f"returned {type(text).__name__} instead of a text, or None")
