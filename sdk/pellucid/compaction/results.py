"""Results of tools that requests have only in part, and the tool `read_result` with which the model reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from pellucid.compaction.strategies import READ_RESULT, text_of
from pellucid.errors import ToolError
from pellucid.messages import Beginning, Message
from pellucid.tools.tool import MetaTool
from pellucid.types import JSONObject

MOST_KEPT: Final = 2**22
"""Bytes of one result that are kept."""

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


def beginning(call_id: str, text: bytes, most: int) -> Beginning:
    """Return the beginning of a result with a notice, both together at most `most` bytes, and with the result."""
    part = Beginning(_part(call_id, text, 0, most))
    part.whole = text[:MOST_KEPT].decode("utf-8", "ignore")
    return part


def find(call_id: str, messages: Sequence[Message]) -> bytes | None:
    """Return a result of the conversation, whole; None if there is none."""
    results = (part for message in reversed(messages) for part in message.tool_results if part.id == call_id)
    return text_of(result) if (result := next(results, None)) is not None else None


def read_result(conversation: Callable[[], Sequence[Message]], most: int) -> MetaTool:
    """Return the tool `read_result`."""

    async def run(arguments: JSONObject, ctx: object) -> str:
        call_id, offset = str(arguments["id"]), int(arguments.get("offset") or 0)
        text = find(call_id, conversation())
        if text is None:
            problem = f"There is no result of a call {call_id[:64]!r}. Use the id that a notice names."
            raise ToolError(problem, error_type="unknown_result_id")
        if offset and offset >= len(text):
            raise ToolError(
                f"This result has {len(text):,} bytes here, all of which come before offset {offset}. If it had more, "
                "they are not kept: call the tool again, and ask for less.",
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
