"""Text for people: hostile characters visible, long text cut, quantities with their units."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Final, TypeGuard

from pellucid_exporters.stored.quantiles import Quantile

MOST: Final = 20_000
"""Characters of one text that a page shows; the rest is behind a link to the raw text."""

_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_PICTURES: Final = 0x2400
_DAY: Final = 86_400
_UNITS: Final = (
    (2 * _DAY, _DAY, "days"),
    (7200, 3600, "h"),
    (120, 60, "min"),
    (1, 1, "s"),
    (1e-3, 1e-3, "ms"),
)
_MILLION: Final = 1_000_000
_SMALL_COST: Final = 1e-4
UNKNOWN: Final = "\N{EN DASH}"
"""Text for an unknown quantity."""


def visible(text: str) -> str:
    """Return `text` with control characters, direction marks and lone surrogates replaced by visible names."""
    return _INVISIBLE.sub(_name, text)


def cut(text: str, limit: int = MOST) -> str:
    """Return the first `limit` characters."""
    return text if len(text) <= limit else text[:limit]


def lines_cut(text: str, limit: int = MOST) -> str:
    """Return how many lines `cut` leaves out, such as `, 12 lines more`; nothing within a line."""
    lines = text.count("\n", limit)
    return f", {lines:,} line{'s' if lines != 1 else ''} more" if lines else ""


def short(text: str, limit: int) -> str:
    """Return the first `limit` characters, with an ellipsis if there are more."""
    return text if len(text) <= limit else f"{text[:limit].rstrip()}…"


def duration(nanoseconds: float | None) -> str:
    """Return a duration with three significant digits."""
    if nanoseconds is None:
        return UNKNOWN
    return seconds(nanoseconds / 1e9)


def seconds(value: float | None) -> str:
    """Return a duration given in seconds."""
    if value is None:
        return UNKNOWN
    for least, unit, name in _UNITS:
        if value >= least:
            return f"{value / unit:.0f} {name}" if value >= 100 * unit else f"{value / unit:.3g} {name}"
    return f"{value * 1e6:.0f} µs"


def quantile(value: Quantile | None) -> str:
    """Return a quantile, marked unless it is exact."""
    return UNKNOWN if value is None else f"{value.mark} {seconds(value.seconds)}".strip()


def money(value: object) -> str:
    """Return US dollars."""
    if not _is_number(value):
        return UNKNOWN
    return f"${value:.2f}" if value >= 1 or value == 0 else f"${value:.2g}" if value >= _SMALL_COST else f"${value:.6f}"


def count(value: object) -> str:
    """Return a number with thousands separated."""
    return f"{value:,}" if _is_number(value) else UNKNOWN


def nested(runs: int) -> str:
    """Return the words for a total of a run and the runs nested in it."""
    return f"with {runs - 1:,} nested run{'s' if runs > 2 else ''}"  # noqa: PLR2004  (itself and more than one)


def size(length: int) -> str:
    """Return a number of characters."""
    return f"{length / 1e6:.1f} M characters" if length >= _MILLION else f"{length:,} characters"


def clock(nanoseconds: int | None) -> str:
    """Return a local time, with the date unless it is today."""
    if nanoseconds is None:
        return UNKNOWN
    moment = datetime.fromtimestamp(nanoseconds / 1e9).astimezone()
    is_today = moment.date() == datetime.now().astimezone().date()
    return moment.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M:%S")


def stamp(nanoseconds: int) -> str:
    """Return a local time with its date, zone and milliseconds."""
    return datetime.fromtimestamp(nanoseconds / 1e9).astimezone().isoformat(sep=" ", timespec="milliseconds")


def age(nanoseconds: int) -> str:
    """Return the time since a moment."""
    return seconds(max(0.0, time.time() - nanoseconds / 1e9))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _name(match: re.Match[str]) -> str:
    code = ord(match.group())
    return chr(_PICTURES + code) if code < 0x20 else f"⟦U+{code:04X}⟧"  # noqa: PLR2004  (C0 has control pictures)
