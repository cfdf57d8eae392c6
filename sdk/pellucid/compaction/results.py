"""Results of tools that requests have only in part, and the tool `read_result` with which the model reads them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from pellucid.compaction.strategies import READ_RESULT, text_of
from pellucid.errors import ToolError
from pellucid.messages import Message
from pellucid.tools.tool import MetaTool
from pellucid.types import JSONObject

MOST_KEPT: Final = 2**24
"""Bytes of results of one run that are kept; the oldest are forgotten first."""

FRAME: Final = 256
"""Bytes of what is said around a part of a result."""

_SCHEMA: Final[JSONObject] = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Id that the notice names."},
        "offset": {"type": "integer", "minimum": 0, "description": "Bytes to skip; 0 unless given."},
    },
    "required": ["id"],
    "additionalProperties": False,
}
_DESCRIPTION: Final = (
    "Read the result of an earlier call that was cut or left out. The notice in its place names the `id`, and the "
    "`offset` from which to read on."
)


class LongResults:
    """Results that are longer than `Limits.max_result_bytes`, in the memory of their run."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, call_id: str, text: bytes, most: int) -> str:
        """Keep a result; return its beginning with a notice, both together at most `most` bytes."""
        self._kept.pop(call_id, None)
        self._kept[call_id] = text
        while len(self._kept) > 1 and sum(map(len, self._kept.values())) > MOST_KEPT:
            self._kept.popitem(last=False)
        return _part(call_id, text, 0, most)

    def find(self, call_id: str, messages: Sequence[Message]) -> bytes | None:
        """Return a result, from memory or from the conversation; None if there is none, or its end is lost."""
        if call_id in self._kept:
            return self._kept[call_id]
        results = (part for message in reversed(messages) for part in message.tool_results if part.id == call_id)
        return text_of(result) if (result := next(results, None)) is not None else None


def read_result(results: LongResults, conversation: Callable[[], Sequence[Message]], most: int) -> MetaTool:
    """Return the tool `read_result`."""

    async def run(arguments: JSONObject, ctx: object) -> str:
        call_id, offset = str(arguments["id"]), int(arguments.get("offset") or 0)
        text = results.find(call_id, conversation())
        if text is None:
            problem = f"There is no result of a call {call_id[:64]!r}. Use the id that a notice names."
            raise ToolError(problem, error_type="unknown_result_id")
        if offset and offset >= len(text):
            raise ToolError(
                f"This result has {len(text):,} bytes here, all of which come before offset {offset}. If it had more, "
                "they are no longer kept: call the tool again, and ask for less.",
                error_type="invalid_arguments",
            )
        return _part(call_id, text, offset, most)

    return MetaTool(name=READ_RESULT, description=_DESCRIPTION, input_schema=_SCHEMA, run=run)


def _part(call_id: str, text: bytes, offset: int, most: int) -> str:
    end = len(text) if len(text) - offset <= most else offset + max(1, most - FRAME - len(call_id.encode()))
    while end < len(text) and text[end] & 0xC0 == 0x80:  # within a character of UTF-8  # noqa: PLR2004
        end += 1
    part = text[offset:end].decode("utf-8", "ignore")
    if end == len(text):
        return part
    return (
        f"{part}\n[cut: bytes {offset:,} to {end:,} of {len(text):,} are above. To read on, call {READ_RESULT} with "
        f"id {json.dumps(call_id)} and offset {end}.]"
    )
