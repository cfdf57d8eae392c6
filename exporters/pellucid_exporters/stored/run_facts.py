"""Facts of a run that its list shows: first lines of what was asked and answered, and who asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pellucid import semconv

LONGEST: Final = 500
"""Characters of a question or an answer that the row of a run has."""

_MOST_PARSED: Final = 1_000_000
_LONGEST_NAME: Final = 200


def question_of(facts: Mapping[str, Any]) -> str | None:
    """Return the beginning of the last message of a user in the input of a boundary, if it was recorded."""
    return _last_text(facts.get(semconv.INPUT_MESSAGES), "user")


def answer_of(facts: Mapping[str, Any]) -> str | None:
    """Return the beginning of the last message of the model in the output of a boundary, if it was recorded."""
    return _last_text(facts.get(semconv.OUTPUT_MESSAGES), "assistant")


def caller_of(facts: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the user and the tenant in the input of a discovery, if it was recorded."""
    recorded = _parsed(facts.get(semconv.INPUT))
    identity = recorded.get("identity") if isinstance(recorded, dict) else None
    if not isinstance(identity, dict):
        return None, None
    return name_of(identity.get("principal")), name_of(identity.get("tenant"))


def name_of(value: object) -> str | None:
    """Return a name as a row of a run has it."""
    return _encodable(value[:_LONGEST_NAME]) if isinstance(value, str) and value else None


def tags_of(attributes: Mapping[str, Any]) -> set[str]:
    """Return the tags of a run, as its row has them."""
    tags = attributes.get(semconv.RUN_TAGS)
    found = map(name_of, tags) if isinstance(tags, list | tuple) else ()
    return {tag for tag in found if tag is not None}


def _last_text(recorded: object, role: str) -> str | None:
    messages = _parsed(recorded)
    if not isinstance(messages, list):
        return None
    for message in reversed(messages):
        if isinstance(message, dict) and message.get("role") == role and (text := _text(message.get("parts"))):
            return text
    return None


def _text(parts: object) -> str:
    """Return the beginning of the texts of a message, in one line."""
    if not isinstance(parts, list):
        return ""
    texts: list[str] = []
    for part in parts:
        content = part.get("content") if isinstance(part, dict) and part.get("type") == "text" else None
        if isinstance(content, str):
            texts.append(content[: 4 * LONGEST])
    return _encodable(" ".join(" ".join(texts).split())[:LONGEST])


def _encodable(text: str) -> str:
    """Return a text without halves of surrogate pairs."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _parsed(recorded: object) -> Any:
    if not isinstance(recorded, str) or len(recorded) > _MOST_PARSED:
        return None
    try:
        return json.loads(recorded)
    except (ValueError, RecursionError):
        return None
