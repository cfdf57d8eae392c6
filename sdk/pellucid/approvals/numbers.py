"""Numbers of JSON, in which 1 and 1.0 are one."""

from __future__ import annotations

import re
from typing import Final

from pellucid.json_text import JSONText
from pellucid.types import JSONValue

_CANONICAL: Final = JSONText(sort_keys=True, allow_nan=False)
_FLOAT: Final = re.compile(r"[0-9][.e]")  # also within texts


def canonical(value: JSONValue) -> str:
    """Return JSON text that is the same for the same value.

    Raises:
        TypeError, ValueError, RecursionError: the value is not JSON.
    """
    text = _CANONICAL.encode(value)
    # A float has one of these, for which a text is searched in a tenth of the time.
    may_have_floats = "." in text or "e+" in text or "e-" in text
    return _CANONICAL.encode(integral(value)) if may_have_floats and _FLOAT.search(text) else text


def integral(value: JSONValue) -> JSONValue:
    """Return a JSON value with integers for floats of the same value: both are one number (RFC 8259, section 6)."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, dict):
        return {name: integral(item) for name, item in value.items()}
    return [integral(item) for item in value] if isinstance(value, list | tuple) else value
