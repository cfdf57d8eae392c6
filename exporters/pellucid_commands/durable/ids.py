"""Ids as people type and read them: their first characters are enough."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Final

from pellucid.errors import ConfigError

if TYPE_CHECKING:
    from pellucid.durable import RunStore

_SHORT: Final = re.compile(r"(?:async_tool_|approval_)?[0-9a-f][0-9a-f-]{3,}")
"""Pattern of the beginning of an id that Pellucid has made."""
_KINDS: Final = ("async_tool_", "approval_")
_FEW: Final = re.compile(r"[0-9a-f-]{0,3}")
"""Pattern of what follows the kind in the beginning of an id of a call, if it is too short to look for."""
_MADE: Final = re.compile(r"([0-9a-f]{12})[0-9a-f]{20}|((?:async_tool_|approval_)[0-9a-f]{8})[0-9a-f-]{24,}")
_NAMED: Final = 5
"""Ids that an error names."""


async def whole_run_id(store: RunStore, start: str) -> str:
    """Return the id of the run whose id begins so; what was given if there is none.

    Raises:
        ConfigError: there are several.
    """
    return _only(start, await store.ids(start, of="runs", limit=_NAMED)) if _SHORT.fullmatch(start) else start


async def whole_call_id(store: RunStore, start: str) -> str:
    """Return the id of the call whose id begins so; what was given if there is none.

    Raises:
        ConfigError: there are several, or it is too short to look for.
    """
    if _SHORT.fullmatch(start):
        return _only(start, await store.ids(start, of="calls", limit=_NAMED))
    if kinds := [kind for kind in _KINDS if kind.startswith(start) or _FEW.fullmatch(start.removeprefix(kind))]:
        raise ConfigError(f"{start!r} is too short: give at least four characters after {' or '.join(kinds)}")
    return start


def _only(start: str, ids: tuple[str, ...]) -> str:
    if start in ids or not ids:
        return start
    if len(ids) > 1:
        raise ConfigError(f"{start!r} is the beginning of several ids; give more of it: {', '.join(ids)}")
    return ids[0]


def short(whole: str) -> str:
    """Return an id as tables show it: its beginning in a terminal, and all of it for programs."""
    made = _MADE.fullmatch(whole) if sys.stdout.isatty() else None
    return made[1] or made[2] if made is not None else whole
