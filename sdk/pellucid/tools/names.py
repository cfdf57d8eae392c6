"""Names of tools: the form that models accept, the conversion of other names, and reserved names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Final

from pellucid.text import excerpt

LONGEST: Final = 64
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INVALID: Final = re.compile(r"[^A-Za-z0-9_-]+")

TOOL_SEARCH: Final = "tool_search"
LAZY_DISCOVERY: Final = "__lazy__tool__discovery__"
LOAD_SKILL: Final = "load_skill"
ASYNC_STATUS: Final = "async_status"
RESERVED: Final[Mapping[str, str]] = {
    TOOL_SEARCH: "the tool that finds other tools",
    LAZY_DISCOVERY: "the tool that discovers lazy tools",
    LOAD_SKILL: "the tool that loads skills",
    ASYNC_STATUS: "the tool that asks about calls in the background",
}
"""Names that no other tool may have, with their meaning."""


def problem_of(name: object) -> str | None:
    """Return the problem of a tool name and its remedy, or None if the name is valid."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        return f"tool name {excerpt(repr(name))} is not 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'"
    if (meaning := RESERVED.get(name)) is not None:
        return f"tool name {name!r} is reserved for {meaning}; give the tool another name"
    return None


def fitted_names(names: Iterable[str]) -> dict[str, str]:
    """Return a unique name that models accept for each name; the same names always give the same result.

    A valid name stays as it is. In any other, invalid characters are replaced; it is cut to 64 characters and ends in a
    hash of the whole name. Because the new names are unique, the table can be inverted.
    """
    unique = list(dict.fromkeys(names))
    fitted = {name: name for name in unique if problem_of(name) is None}
    taken = set(fitted)
    for name in sorted(set(unique) - fitted.keys()):
        taken.add(fitted.setdefault(name, fit(name, taken)))
    return fitted


def fit(name: str, taken: Collection[str]) -> str:
    """Return a name that models accept, derived from `name` and not `taken`; `name` itself if it qualifies."""
    if problem_of(name) is None and name not in taken:
        return name
    fitted = _hashed(name)
    while fitted in taken:  # another tool is named like the hash
        fitted = _hashed(f"{name}\0{fitted}")
    return fitted


def _hashed(name: str) -> str:
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    readable = _INVALID.sub("_", name)[: LONGEST - len(digest) - 1]
    return f"{readable}_{digest}"
