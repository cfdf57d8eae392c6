"""A recorded run with other models, as a table."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from pellucid import semconv
from pellucid.errors import ConfigError
from pellucid.models.names import resolve
from pellucid.text import excerpt
from pellucid_commands.inspection.output import say, say_json, table
from pellucid_commands.replay.sources import root_of
from pellucid_exporters.stored import text
from pellucid_replay import replay_sync

if TYPE_CHECKING:
    from pellucid import Agent
    from pellucid_replay import Replay, Tape

_TITLES: Final = ("MODEL", "OUTCOME", "CALLS", "TOKENS", "COST", "TIME", "ANSWER")
_RIGHT: Final = ("CALLS", "TOKENS", "COST", "TIME")
_SHOWN: Final = 300
"""Characters of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model's run.

    Attributes:
        outcome: Value of `pellucid.outcome`, or `diverged` where the tape had no answer.
        tool_calls: Number of calls.
        cost: US dollars.
        answer: The last answer, the error, or the first boundary without an answer.
    """

    model: str
    outcome: str
    tool_calls: int
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None
    seconds: float
    answer: str


def compare_models(
    agent: Agent[Any, Any] | None, tape: Tape, names: str, choices: Mapping[str, Any], *, as_json: bool
) -> int:
    """Replay a run with each model, print a table, and return the exit code: 1 if a run failed or diverged.

    Args:
        agent: The agent, if there is one.
        tape: The recorded run.
        names: Names such as `openai:gpt-6-sol`, with commas between.
        choices: Further arguments of `replay`.
        as_json: Print JSON instead.

    Raises:
        ConfigError: there is no such model.
    """
    models = {name: resolve(name) for name in filter(None, (part.strip() for part in names.split(",")))}
    if not models:
        raise ConfigError("--models is empty; write names such as openai:gpt-6-sol, with commas between")
    rows = [_recorded(tape)]
    for name, model in models.items():
        started = time.perf_counter()
        replayed = replay_sync(agent, tape, model=model, **choices)
        rows.append(_row(name, replayed, time.perf_counter() - started))
    if as_json:
        say_json({"run": tape.run_id, "models": [asdict(row) for row in rows]})
    else:
        say(*table(_TITLES, map(_cells, rows), right=_RIGHT))
    return 0 if all(row.outcome == semconv.COMPLETED for row in rows[1:]) else 1


def _recorded(tape: Tape) -> Row:
    root = root_of(tape)
    own = [span for span in tape.spans if span.run_id == tape.run_id]
    chats = [span.attributes for span in own if span.phase == semconv.INFERENCE]
    return Row(
        model=f"{root.get(semconv.REQUEST_MODEL)} (recorded)",
        outcome=root.outcome,
        tool_calls=sum(span.phase == semconv.DISPATCH for span in own),
        **_usage(chats),
        seconds=root.seconds,
        answer=_text_of(root.get(semconv.OUTPUT_MESSAGES)) or root.error or "",
    )


def _row(name: str, replayed: Replay[Any], seconds: float) -> Row:
    chats = [span.attributes for span in replayed.spans if span.attributes.get(semconv.PHASE) == semconv.INFERENCE]
    is_diverged = replayed.divergence is not None
    return Row(
        model=name,
        outcome="diverged" if is_diverged else replayed.outcome,
        tool_calls=len(replayed.tool_calls),
        **_usage(chats),
        seconds=seconds,
        answer=_answer(replayed),
    )


def _answer(replayed: Replay[Any]) -> str:
    if replayed.result is not None and replayed.result.output is not None:
        return str(replayed.result.output)
    if replayed.divergence is not None:
        return f"the tape has no answer: {replayed.divergence}"
    return str(replayed.error or "")


def _usage(chats: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    known = list(chats)
    return {
        "input_tokens": _sum(known, semconv.USAGE_INPUT_TOKENS),
        "output_tokens": _sum(known, semconv.USAGE_OUTPUT_TOKENS),
        "cost": _sum(known, semconv.COST_USD),
    }


def _sum(chats: Sequence[Mapping[str, Any]], attribute: str) -> Any:
    """Return the sum of an attribute; None if no call has it."""
    values = [chat[attribute] for chat in chats if attribute in chat]
    return sum(values) if values else None


def _text_of(messages: str | None) -> str:
    try:
        last = json.loads(messages or "[]")[-1:]
    except ValueError:  # it was cut
        return ""
    return "".join(str(part.get("content", "")) for message in last for part in message.get("parts", ()))


def _cells(row: Row) -> tuple[str, ...]:
    tokens = [number for number in (row.input_tokens, row.output_tokens) if number is not None]
    return (
        row.model,
        row.outcome,
        text.count(row.tool_calls),
        text.count(sum(tokens)) if tokens else text.UNKNOWN,
        text.money(row.cost),
        text.seconds(row.seconds),
        excerpt(row.answer, _SHOWN),
    )
