"""Answers in JSON."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


class JSONAnswer(JSONResponse):
    """Answer in JSON. Half of a surrogate pair, which UTF-8 cannot encode, becomes a question mark."""

    def render(self, content: Any) -> bytes:
        """Return the body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")
