"""Requests that are too long for a model's window, by what vendors and servers say of them."""

from __future__ import annotations

import re
from typing import Final

TOO_LONG: Final = "context_length_exceeded"
"""Value of `error.type` of a model's failure because the request does not fit into its window."""

_SAID: Final = re.compile(
    r"context_length_exceeded|exceed_context_size"  # codes of OpenAI and others, and of llama.cpp
    r"|(maximum|max) (context|prompt|model) len(gth)?"  # OpenAI, vLLM, Mistral, xAI
    r"|(exceeds?|larger than|too \w+ for) [^.]*context (window|size|length|limit)"  # OpenAI, Anthropic, llama.cpp
    r"|prompt is too long|input is too long"  # Anthropic, also on Bedrock
    r"|input token count [^.]*exceeds",  # Gemini
    re.IGNORECASE,
)


def is_too_long(text: str) -> bool:
    """Return whether the text of a refused request says that it was too long."""
    return _SAID.search(text) is not None
