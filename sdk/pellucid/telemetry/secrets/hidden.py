"""Texts whose secrets are hidden from searches: by escapes, or because the name is elsewhere than before the value."""

from __future__ import annotations

import re
from typing import Final

from pellucid.telemetry.secrets.commands import may_have_arguments
from pellucid.telemetry.secrets.names import names_secret

_HIDING: Final = re.compile(r"\\u00(?!3[ce])(?:[2-7][0-9a-f]|a0)|\\u20(?:0[0-9ab]|2[89f]|5f|60)|:\\/\\/", re.IGNORECASE)
"""Escapes of blanks, and of characters that need none, which keep names, tokens and addresses from being found."""

_DEEP: Final = "\\" * 9
"""Escapes that are too many for the other searches."""

_NAMED: Final = re.compile(r"""(?:name|key|header|field)\\*["']\s*:\s*\\*["']([\w.$-]{1,64})\\*["']""", re.ASCII)
_PAIRS: Final = re.compile(r"\[(?:\s|\\+[nrt])*[\[(]")
"""Start of a list of pairs."""


def may_hide_secrets(text: str, lower: str, *, has_words: bool) -> bool:
    """Return whether a text can have secrets that only reading its documents finds."""
    if "{" not in text and "[" not in text:
        return False
    if "-" in text and may_have_arguments(text):
        return True
    if has_words and (_DEEP in text or _PAIRS.search(text) is not None or _has_named_values(text, lower)):
        return True
    return "\\" in text and _HIDING.search(text) is not None


def _has_named_values(text: str, lower: str) -> bool:
    """Return whether a text has the name of a secret beside a `value`, as in a list of variables."""
    if "value" not in lower and '"val' not in lower:
        return False
    return any(names_secret(text[slice(*match.span(1))]) for match in _NAMED.finditer(lower))
