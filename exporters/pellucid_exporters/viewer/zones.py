"""Time zones of a page, and times in them."""

from __future__ import annotations

import time
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from starlette.exceptions import HTTPException

from pellucid_exporters.stored.text import UNKNOWN

LOCAL: Final = "local"
"""Name of the zone of this machine."""

ZONES: Final = (LOCAL, "UTC", "America/Los_Angeles", "America/New_York", "Europe/Berlin", "Asia/Kolkata", "Asia/Tokyo")
"""Zones that a page suggests."""

_LONGEST: Final = 64
_SECOND: Final = 10**9


class Zone:
    """A time zone.

    Attributes:
        name: Its name in a URL; None for that of this machine.
    """

    def __init__(self, name: str | None) -> None:
        """Look up a zone.

        Raises:
            HTTPException: 400, there is no such zone.
        """
        self.name = name if name and name != LOCAL else None
        self._zone: tzinfo | None = None
        if self.name is not None:
            try:
                self._zone = UTC if self.name == "UTC" else ZoneInfo(self.name[:_LONGEST])
            except (KeyError, OSError, ValueError) as error:
                raise HTTPException(400, "This machine knows no time zone of that name.") from error

    def at(self, nanoseconds: int) -> datetime:
        """Return a time in the zone."""
        return datetime.fromtimestamp(min(nanoseconds, 253_402_214_400 * _SECOND) / _SECOND, UTC).astimezone(self._zone)

    def stamp(self, nanoseconds: int) -> str:
        """Return a time with its date, zone and milliseconds."""
        moment = self.at(nanoseconds)
        return f"{moment:%Y-%m-%d %H:%M:%S}.{nanoseconds // 1_000_000 % 1000:03} {moment.tzname() or ''}".rstrip()

    def short(self, nanoseconds: int, range_: int) -> str:
        """Return a time as precise as a label in a range of so many nanoseconds needs it."""
        moment = self.at(nanoseconds)
        if range_ > 4 * 86_400 * _SECOND:
            return f"{moment.day} {moment:%b}"
        if range_ > 12 * 3600 * _SECOND:
            return f"{moment.day} {moment:%b %H:%M}"
        return f"{moment:%H:%M:%S}" if range_ < 600 * _SECOND else f"{moment:%H:%M}"


def ago(nanoseconds: int | None) -> str:
    """Return the time since a moment in one unit."""
    if nanoseconds is None:
        return UNKNOWN
    passed = max(0, time.time_ns() - nanoseconds) // _SECOND
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "min")):
        if passed >= 2 * unit:
            return f"{passed // unit} {name} ago"
    return f"{passed} s ago"
