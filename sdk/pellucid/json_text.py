"""JSON text of values, made often."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


class JSONText:
    """Encoder as `json.JSONEncoder` is, with the same texts and errors.

    That one makes its part in C anew for each text, which takes as long as a text of 200 characters; this one makes it
    once. A value that contains itself is noticed as one that is nested too deeply, and left to the other encoder.

    Args:
        **options: Those of `json.JSONEncoder`, without `indent`.
    """

    __slots__ = ("_encoder", "_parts")

    def __init__(self, **options: Any) -> None:
        self._encoder = json.JSONEncoder(**options)
        self._parts = _c_encoder(self._encoder)

    def encode(self, value: Any) -> str:
        """Return JSON text.

        Raises:
            TypeError, ValueError, RecursionError: the value is not JSON, contains itself, or is nested too deeply.
        """
        if self._parts is None:
            return self._encoder.encode(value)
        try:
            return "".join(self._parts(value, 0))
        except RecursionError:
            return self._encoder.encode(value)


def _c_encoder(encoder: json.JSONEncoder) -> Callable[[Any, int], tuple[str, ...]] | None:
    """Return the part in C, without its check for values that contain themselves; None if this Python has another."""
    source: Any = json.encoder
    text = source.encode_basestring_ascii if encoder.ensure_ascii else source.encode_basestring
    separators = encoder.key_separator, encoder.item_separator
    flags = encoder.sort_keys, encoder.skipkeys, encoder.allow_nan
    try:
        parts: Callable[[Any, int], tuple[str, ...]] = source.c_make_encoder(
            None, encoder.default, text, None, *separators, *flags
        )
    except TypeError:
        return None
    return parts
