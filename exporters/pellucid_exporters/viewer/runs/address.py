"""The address of the list of runs: filters, range of time, order, page and zone."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from pellucid.errors import ConfigError
from pellucid_exporters.stored.rows import AGENT, ALL, KINDS, STATUSES
from pellucid_exporters.stored.run_search import RunFilter
from pellucid_exporters.stored.scores import ScoreCondition
from pellucid_exporters.viewer.pages import number, query, whole
from pellucid_exporters.viewer.zones import Zone

TEXTS: Final = (
    *("text", "agent", "outcome", "hub", "tool", "model", "user", "tenant", "conversation", "version", "error_type"),
    *("tag", "score", "kind"),
)
NUMBERS: Final = ("min_duration", "min_cost")
FLAGS: Final = ("everywhere", "faulty", "outermost")
RANGES: Final = {"15m": 900, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}
"""Ranges of time up to now by their name in the address, in seconds."""

IS_KIND: Final = (AGENT, *KINDS, ALL)
SCORE: Final = "score:"
"""Before the name of a score by which runs are sorted."""

COLUMNS: Final = (
    *("start", "question", "answer", "status", "agent", "user", "tenant", "conversation", "duration", "tokens", "cost"),
)
"""Columns by which runs are sorted; with `-` before it, the largest first."""

NEWEST: Final = "-start"
_SECOND: Final = 10**9


@dataclass(frozen=True, slots=True)
class Address:
    """Contents of an address.

    Attributes:
        given: Filters that are set, by their names in the address.
        range: Name of a range up to now, if there is one.
        since, until: Times of the start of a run, if they are in the address or given by the range.
        sort: Column, with `-` before it for the largest first.
        page: Number of the page, from 1.
        column: Name of a score that is a column, however many there are.
    """

    given: Mapping[str, Any]
    range: str | None
    since: int | None
    until: int | None
    sort: str
    page: int
    zone: Zone
    column: str | None = None

    def filter(self) -> RunFilter:
        """Return what the runs are searched by."""
        flags = {name: name in self.given for name in FLAGS}
        score = {"score": ScoreCondition.of(self.given["score"])} if "score" in self.given else {}
        kind = {"kind": AGENT} if "kind" not in self.given and "conversation" not in self.given else {}
        return RunFilter(**{**self.given, **flags, **score, **kind}, since=self.since, until=self.until)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of this address, without the page."""
        times = {"range": self.range} if self.range else {"since": self.since, "until": self.until}
        sort = self.sort if self.sort != NEWEST else None
        return {**self.given, **times, "sort": sort, "zone": self.zone.name, "column": self.column}

    def scores(self) -> set[str]:
        """Return the names of scores that the address names: as a column, as the order, or in a filter."""
        sort = self.sort.removeprefix("-")
        wanted = self.filter().score
        names = (self.column, sort.removeprefix(SCORE) if sort.startswith(SCORE) else None, wanted and wanted.name)
        return {name for name in names if name}

    def link(self, **changes: Any) -> str:
        """Return the address with other parameters; on the first page, unless they name one."""
        return f"/runs?{query(**{**self.parameters(), **changes})}"

    def sorted_by(self, column: str) -> str:
        """Return the address in the order of a column; in the other direction, if it is in that order already."""
        first = f"-{column}" if column in {"start", "duration", "tokens", "cost", "status"} else column
        other = first.removeprefix("-") if first.startswith("-") else f"-{first}"
        return self.link(sort=other if self.sort == first else first)


def address_of(request: Request) -> Address:
    """Read the address.

    Raises:
        HTTPException: 400, it has a value that cannot be.
    """
    parameters = request.query_params
    given: dict[str, Any] = {name: parameters.get(name, "").strip() for name in TEXTS}
    given |= {name: number(name, parameters.get(name)) for name in NUMBERS}
    given |= {name: 1 if parameters.get(name) else None for name in FLAGS}
    sort = parameters.get("sort") or NEWEST
    if sort.removeprefix("-") not in COLUMNS and not sort.removeprefix("-").startswith(SCORE):
        raise HTTPException(
            400, f"Runs are sorted by one of {', '.join(COLUMNS)}, or by {SCORE} and the name of a score."
        )
    _check_score(given["score"])
    check_kind(given["kind"])
    if given["outcome"] not in {"", *STATUSES}:
        raise HTTPException(400, f"The outcome must be one of {', '.join(STATUSES)}.")
    name = parameters.get("range") or None
    if name is not None and name not in RANGES:
        raise HTTPException(400, f"The range must be one of {', '.join(RANGES)}.")
    since, until = whole(parameters.get("since")), whole(parameters.get("until") or parameters.get("before"))
    if name is not None:
        since, until = max(0, time.time_ns() - RANGES[name] * _SECOND), None
    return Address(
        given={name: value for name, value in given.items() if value not in {None, ""}},
        range=name,
        since=since,
        until=until,
        sort=sort,
        page=max(1, whole(parameters.get("page"), "The page must be a number.") or 1),
        zone=Zone(parameters.get("zone")),
        column=parameters.get("column") or None,
    )


def check_kind(kind: str) -> None:
    """Check a kind of runs that an address names, if it does.

    Raises:
        HTTPException: 400, there is no such kind.
    """
    if kind not in {"", *IS_KIND}:
        raise HTTPException(400, f"The kind must be one of {', '.join(IS_KIND)}.")


def _check_score(text: str) -> None:
    if text:
        try:
            ScoreCondition.of(text)
        except ConfigError as error:
            raise HTTPException(400, f"{error}.") from error
