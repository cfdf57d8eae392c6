"""Pieces of answers: joined and bounded while they wait, and as messages to other processes."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from types import UnionType
from typing import Any, Final, TypeAlias

from pellucid.durable.states.records import RunDelta

MAX_WAITING: Final = 65_536
"""Characters that wait for a reader or a message; beyond, the oldest pieces are dropped."""

MAX_MESSAGE: Final = 7_900
"""Bytes of a message; PostgreSQL has 7,999 for a notification, with its channel."""

_FIELDS: Final = {"key": str, "claim": int, "attempt": int, "type": str, "offset": int, "content": str}

Step: TypeAlias = tuple[int, bool]
"""Iteration, and whether it is the closing answer, which follows the last iteration."""


def step_of(key: str) -> Step:
    """Return which answer of the run a key stands for.

    Raises:
        ValueError: it is not the key of an answer.
    """
    iteration, _, suffix = key.partition(":")
    if suffix not in {"", "closing"}:
        raise ValueError(key)
    return int(iteration), bool(suffix)


class Pieces:
    """Pieces that wait. One that continues the last one is joined to it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[RunDelta, list[str], int]] = deque()  # first piece, contents, offset at the end
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, piece: RunDelta) -> None:
        """Add a piece; drop the oldest ones if too many characters wait."""
        size = len(piece.content)
        if self._size + size > MAX_WAITING:
            self._waiting.clear()
            self._size = 0
        self._size += size
        first, contents, end = self._waiting[-1] if self._waiting else (piece, [], -1)
        if end == piece.offset and _is_same(first, piece):
            contents.append(piece.content)
            self._waiting[-1] = first, contents, end + size
        else:
            self._waiting.append((piece, [piece.content], piece.offset + size))

    def take(self) -> list[RunDelta]:
        """Return what waits, in order."""
        pieces = [replace(first, content="".join(contents)) for first, contents, _ in self._waiting]
        self._waiting.clear()
        self._size = 0
        return pieces


def _is_same(first: RunDelta, piece: RunDelta) -> bool:
    return (first.type, first.attempt, first.key, first.claim) == (piece.type, piece.attempt, piece.key, piece.claim)


def messages_of(run_id: str, piece: RunDelta, sender: str) -> list[str]:
    """Return a piece as JSON in ASCII, which any database can carry: several messages if it is too long for one."""
    text = json.dumps({"run_id": run_id, "from": sender, **asdict(piece)})
    size = len(piece.content)
    if len(text) <= MAX_MESSAGE or size < 2:  # noqa: PLR2004  (cannot be divided)
        return [text]
    half = size // 2
    halves = (
        replace(piece, content=piece.content[:half]),
        replace(piece, content=piece.content[half:], offset=piece.offset + half),
    )
    return [message for part in halves for message in messages_of(run_id, part, sender)]


def announcements_of(run_ids: Sequence[str], sender: str) -> list[str]:
    """Return messages that say which runs are read."""
    text = json.dumps({"from": sender, "runs": list(run_ids)})
    if len(text) <= MAX_MESSAGE or len(run_ids) == 1:
        return [text]
    half = len(run_ids) // 2
    return announcements_of(run_ids[:half], sender) + announcements_of(run_ids[half:], sender)


def body_of(text: str | bytes, **types: type | UnionType) -> dict[str, Any] | None:
    """Return the members of a message; None if it is something else."""
    try:
        body: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not all(isinstance(body.get(name), kind) for name, kind in types.items()):
        return None
    return body


def piece_of(body: Mapping[str, Any]) -> RunDelta | None:
    """Return the piece of a message; None if it has none."""
    try:
        step_of(body["key"])
        if all(isinstance(body[name], kind) for name, kind in _FIELDS.items()):
            return RunDelta(**{name: body[name] for name in _FIELDS})
    except (KeyError, ValueError, AttributeError):
        return None
    return None
