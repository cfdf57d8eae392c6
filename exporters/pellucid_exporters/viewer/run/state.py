"""The state of a run's page, which is its address: selected span, range of time, window, and what is open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException

from pellucid_exporters.viewer.pages import not_negative

SIDES: Final = ("conversation", "calls", "events", "logs", "configuration")
"""Parts of a run that the page shows beside the waterfall."""

_LONGEST: Final = 1_000
"""Characters of the list of rows that are open, or closed."""


@dataclass(frozen=True, slots=True)
class State:
    """State of a page.

    Attributes:
        span: Key of the selected span; see `RunTree.key`.
        since, until: Range of time in milliseconds after the start of the run; `None` for its start and end.
        row: First row of the window; `None` for the window with the selected span.
        folds: Keys of rows that are open although they would be closed, or closed although they would be open.
        open: `all` or `none` of the rows; empty for what fits.
        last: Number of the last item of the window beside the waterfall; `None` for the latest.
        side: Part beside the waterfall, one of `SIDES`.
    """

    span: str = ""
    since: float | None = None
    until: float | None = None
    row: int | None = None
    folds: frozenset[str] = frozenset()
    open: str = ""
    last: int | None = None
    side: str = SIDES[0]

    @classmethod
    def of(cls, query: Mapping[str, str]) -> State:
        """Return the state of an address.

        Raises:
            HTTPException: 400, a number is none.
        """
        since, until = _number(query, "from"), _number(query, "to")
        side, opened = query.get("side", ""), query.get("open", "")
        return cls(
            span=query.get("span", "")[:100],
            since=since,
            until=until if until is None or until > (since or 0) else None,
            row=_whole(query, "row"),
            folds=frozenset(filter(None, query.get("fold", "")[:_LONGEST].split(","))),
            open=opened if opened in {"all", "none"} else "",
            last=_whole(query, "last"),
            side=side if side in SIDES else SIDES[0],
        )

    def address(self, **changes: Any) -> str:
        """Return the address of a state that differs from this one, relative to the page of the run."""
        state = replace(self, **changes)
        shown = {
            "span": state.span,
            "from": _shown(state.since),
            "to": _shown(state.until),
            "row": "" if state.row is None else str(state.row),
            "fold": ",".join(sorted(state.folds)),
            "open": state.open,
            "last": "" if state.last is None else str(state.last),
            "side": "" if state.side == SIDES[0] else state.side,
        }
        query = urlencode({name: value for name, value in shown.items() if value}, safe=",/")
        return f"./?{query}" if query else "./"

    def folded(self, key: str) -> str:
        """Return the address of the page on which a row is open that is closed here, or closed that is open."""
        return f"{self.address(folds=self.folds ^ {key})}#{key}"


def _shown(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f"{milliseconds:.6f}".rstrip("0").rstrip(".")


def _number(query: Mapping[str, str], name: str) -> float | None:
    if not (text := query.get(name)):
        return None
    return not_negative(text, f"'{name}' in the address must be milliseconds after the start of the run.")


def _whole(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    if not text.isdecimal() or len(text) > 9:  # noqa: PLR2004  (more than any run has)
        raise HTTPException(400, f"'{name}' in the address must be a number.")
    return int(text)
