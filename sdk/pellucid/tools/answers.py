"""Check the answers of people to questions of MCP servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pellucid.tools.schema import Validator
from pellucid.types import JSONObject

_FLAT: Final = Validator(
    {
        "type": "object",
        "additionalProperties": {
            "type": ["string", "number", "boolean", "null", "array"],
            "items": {"type": "string"},
        },
    }
)
"""Answers that the protocol allows."""


def issues_of(schema: JSONObject, answer: JSONObject) -> Sequence[str]:
    """Return why an answer does not fit the schema of its question, or the protocol, without its values."""
    return Validator(schema).issues(answer) or _FLAT.issues(answer)
