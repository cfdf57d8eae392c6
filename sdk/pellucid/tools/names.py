"""Names of tools: what models accept, how any other name is made to fit, and which names are taken."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Final

from pellucid.text import excerpt

LONGEST: Final = 64
NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ODD: Final = re.compile(r"[^A-Za-z0-9_-]+")

TOOL_SEARCH: Final = "tool_search"
LAZY_DISCOVERY: Final = "__lazy__tool__discovery__"
LOAD_SKILL: Final = "load_skill"
RESERVED: Final[Mapping[str, str]] = {
    TOOL_SEARCH: "the tool that finds other tools",
    LAZY_DISCOVERY: "the tool that discovers lazy tools",
    LOAD_SKILL: "the tool that loads skills",
}
"""Names that no other tool may have, and what they stand for."""


def problem_of(name: object) -> str | None:
    """Return what is wrong with the name of a tool, and what to do about it; None if nothing is."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        return f"tool name {excerpt(repr(name))} is not 1 to 64 characters of A-Z, a-z, 0-9, '_' and '-'"
    if (meaning := RESERVED.get(name)) is not None:
        return f"tool name {name!r} is reserved for {meaning}; give the tool another name"
    return None


def fitted_names(names: Iterable[str]) -> dict[str, str]:
    """Return for each name one that models accept: the same for the same names, and never two alike.

    A name that fits stays as it is. Any other has its odd characters replaced, is cut to 64 characters, and ends in a
    hash of the whole. Because no two are alike, the table can be read backwards too.
    """
    wanted = list(dict.fromkeys(names))
    given = {name: name for name in wanted if problem_of(name) is None}
    taken = set(given)
    for name in sorted(set(wanted) - given.keys()):
        taken.add(given.setdefault(name, fit(name, taken)))
    return given


def fit(name: str, taken: Collection[str]) -> str:
    """Return a name that models accept, made of `name`, that is not `taken`; `name` itself if that is one."""
    if problem_of(name) is None and name not in taken:
        return name
    fitted = _hashed(name)
    while fitted in taken:  # somebody names tools after our hashes
        fitted = _hashed(f"{name}\0{fitted}")
    return fitted


def _hashed(name: str) -> str:
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    readable = _ODD.sub("_", name)[: LONGEST - len(digest) - 1]
    return f"{readable}_{digest}"
