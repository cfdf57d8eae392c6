"""Times of command lines."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from typing import Final

_UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)([smhdw]?)", re.ASCII)


def duration(text: str) -> float:
    """Parse a time such as 90, 30s, 10m, 12h or 30d into seconds.

    Raises:
        ArgumentTypeError: it is none.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a time such as 90, 30s, 10m, 12h or 30d")
    return float(match[1]) * _UNITS[match[2]]
