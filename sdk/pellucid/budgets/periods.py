"""Calendar periods of budgets, in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

Per: TypeAlias = Literal["hour", "day", "month"]
"""A calendar period in UTC."""

_FORMATS: Final = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m", None: ""}


def period_at(per: Per | None, now: float) -> str:
    """Return the period of a time, in seconds since the epoch."""
    return datetime.fromtimestamp(now, UTC).strftime(_FORMATS[per])
