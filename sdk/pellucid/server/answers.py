"""Answers in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import JSONResponse

from pellucid.json_text import JSONText

DEPRECATED: Final[Mapping[str, str]] = {"Deprecation": "@1795737600"}
"""Header of answers to requests with an old name of a member (RFC 9745): read until the next minor version."""

_ENCODER: Final = JSONText(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class JSONAnswer(JSONResponse):
    """Answer in JSON. Half of a surrogate pair, which UTF-8 cannot encode, becomes a question mark."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        return _ENCODER.encode(content).encode("utf-8", "replace")
