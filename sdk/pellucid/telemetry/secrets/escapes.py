"""Escapes in strings of JSON and Python, and where the characters come from."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Final

_LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "0": "\0", "a": "\a", "v": "\v"}
_CODE: Final = re.compile(r"u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|U00(?:0[0-9A-Fa-f]|10)[0-9A-Fa-f]{4}")


class Unescaped:
    """A string without its escapes.

    Attributes:
        text: The text that the string stands for.
        escapes: Number of escapes.
    """

    def __init__(self, raw: str) -> None:
        first, *others = raw.split("\\")
        pieces, self._starts, self._raw = [first], [0], [0]
        length = end = len(first)
        escapes = iter(others)
        for piece in escapes:
            character, size = _character(piece)
            rest = piece[size:] if piece else next(escapes, "")  # an escaped backslash is between two pieces
            pieces += character, rest
            length += 1
            end += size + 1
            self._starts.append(length)
            self._raw.append(end)
            length += len(rest)
            end += len(rest)
        self.text = "".join(pieces)
        self.escapes = len(others)

    def raw(self, at: int) -> int:
        """Return the position in the string of a position in the text."""
        number = bisect_right(self._starts, at) - 1
        return self._raw[number] + at - self._starts[number]


def _character(piece: str) -> tuple[str, int]:
    """Return the character of what follows a backslash, and the length of its escape without the backslash."""
    if not piece:
        return "\\", 1
    if piece[0] in "uxU" and (code := _CODE.match(piece)) is not None:
        return chr(int(code[0][1:], 16)), code.end()
    return _LETTERS.get(piece[0], piece[0]), 1


def unescaped(raw: str) -> str:
    """Return the text that a string stands for."""
    return Unescaped(raw).text if "\\" in raw else raw


def escaped(text: str, quote: str) -> str:
    """Return a text as it is written in a string with these quotes."""
    return text.replace("\\", "\\\\").replace(quote, f"\\{quote}") if text else text
