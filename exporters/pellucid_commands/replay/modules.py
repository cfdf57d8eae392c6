"""Modules for pytest that replay a tape."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel

from pellucid import Agent
from pellucid_commands.replay.sources import agent_name, root_of

if TYPE_CHECKING:
    from pellucid_replay import Replay, Tape

_TAKEN: Final = frozenset({"Tape", "pytest", "replay_sync", "replayed", "tape"})
_LONGEST: Final = 200
"""Characters of an answer that a test compares whole."""

_WIDTH: Final = 100


def module_of(replayed: Replay[Any], path: Path, place: str | None, agent: Agent[Any, Any] | None) -> str:
    """Return a module with one test, which replays a run and asserts its outcome.

    Args:
        replayed: The replay, which was the same as the recording.
        path: The tape.
        place: Place of the agent, such as `app.agents:support`.
        agent: The agent; None if it is built from the recording.
    """
    tape = replayed.tape
    imports, variable = _import_of(place, agent)
    name = re.sub(r"\W+", "_", agent_name(tape).lower(), flags=re.ASCII).strip("_")
    lines = [
        f'"""{_title(tape)}"""',
        "",
        "import pytest",
        "",
        "from pellucid_replay import Tape, replay_sync",
        *imports,
        "",
        "",
        f"@pytest.mark.tape({_text(path.as_posix())})",
        f"def test_{name or 'agent'}_{tape.run_id[:12]}(tape: Tape) -> None:",
        f"    replayed = replay_sync({variable}, tape).check()",
        "",
        *(f"    {line}" for line in _assertions(replayed)),
    ]
    return "".join(f"{line}\n" for line in lines)


def _title(tape: Tape) -> str:
    day = datetime.fromtimestamp(root_of(tape).start / 1e9, UTC).date()
    return f"Run {tape.run_id}, recorded on {day}, again: model, hubs and tools answer from the tape."


def _import_of(place: str | None, agent: Agent[Any, Any] | None) -> tuple[list[str], str]:
    """Return how to import an agent, and the expression that is the agent."""
    if place is None or agent is None:
        return [], "None"
    module, _, name = place.partition(":")
    variable = "agent" if name in _TAKEN else name
    statement = f"from {module} import {name}" + (f" as {variable}" if variable != name else "")
    if isinstance(getattr(sys.modules[module], name), Agent):
        return ["", statement], variable
    return ["", statement], f"next(agent for agent in {variable} if agent.name == {_text(agent.name)})"


def _assertions(replayed: Replay[Any]) -> Iterator[str]:
    yield f"assert replayed.outcome == {_text(replayed.outcome)}"
    calls = f"assert replayed.tool_calls == {_value(replayed.tool_calls)}"
    if len(calls) <= _WIDTH:
        yield calls
    else:
        yield "assert replayed.tool_calls == ["
        yield from (f"    {_text(name)}," for name in replayed.tool_calls)
        yield "]"
    if replayed.is_stopped:
        yield "assert replayed.is_stopped  # where the recorded run was"
    elif replayed.error is not None:
        yield f"assert type(replayed.error).__name__ == {_text(type(replayed.error).__name__)}"
        yield from _equal("str(replayed.error)", str(replayed.error))
    elif replayed.result is not None:
        yield "assert replayed.result is not None"
        if replayed.result.status != replayed.outcome:
            yield f"assert replayed.result.status == {_text(replayed.result.status)}"
        yield from _answer(replayed.result.output)


def _answer(output: Any) -> Iterator[str]:
    """Yield the assertion on an answer; other values than text, models and JSON are compared by `check()` alone."""
    if isinstance(output, str):
        yield from _equal("replayed.result.output", output)
    elif isinstance(output, BaseModel):
        expression = 'replayed.result.output.model_dump(mode="json")'
        expected = output.model_dump(mode="json")
        yield f"assert {expression} == {_value(expected)}"
    elif isinstance(output, (bool, int, float, list, dict)) and _is_plain(output):
        yield f"assert replayed.result.output == {_value(output)}"


def _equal(expression: str, text: str) -> Iterator[str]:
    if len(text) <= _LONGEST:
        yield f"assert {expression} == {_text(text)}"
    else:
        yield f"assert {expression}.startswith({_text(text[:_LONGEST])})"


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, (str, int, type(None)))


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_value(item)}' for key, item in value.items())}}}"
    return f"[{', '.join(map(_value, value))}]" if isinstance(value, list) else repr(value)


def _text(text: str) -> str:
    """Return the literal of a text, in which nothing is invisible, with double quotes if that needs no escapes."""
    literal = repr(text)
    is_simple = literal[0] == "'" and '"' not in literal
    return f'"{literal[1:-1]}"' if is_simple else literal
