"""Numbers of command lines."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from typing import Final

MAX_PORT: Final = 65_535


def positive(text: str) -> int:
    """Return a number of the command line."""
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def seconds(text: str) -> float:
    """Return a time of the command line."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return number


def port_number(text: str) -> int:
    """Return a port of the command line."""
    if not text.isascii() or not text.isdecimal() or int(text) > MAX_PORT:
        raise ArgumentTypeError(f"{text!r} is not a port, 0 to {MAX_PORT}")
    return int(text)
