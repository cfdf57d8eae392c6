"""Names of a server's tools, made to fit what models accept."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

_LONGEST: Final = 64
_FITS: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ODD: Final = re.compile(r"[^A-Za-z0-9_-]+")


def exposed_names(names: Iterable[str], server: str, *, prefix: bool) -> dict[str, str]:
    """Return the name that models are given for each of the server's names.

    A name that fits stays as it is, or becomes `mcp__<server>__<name>`. Any other has its odd characters replaced, is
    cut to 64 characters, and ends in a hash of the whole: the same at every listing, and never equal to another.
    """
    wanted = {name: f"mcp__{server}__{name}" if prefix else name for name in names}
    given = {name: full for name, full in wanted.items() if _FITS.fullmatch(full)}
    taken = set(given.values())
    for name in sorted(wanted.keys() - given.keys()):
        fitted = _fit(wanted[name])
        while fitted in taken:  # a server that names its tools after our hashes
            fitted = _fit(f"{wanted[name]}\0{fitted}")
        given[name] = fitted
        taken.add(fitted)
    return given


def _fit(name: str) -> str:
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
    readable = _ODD.sub("_", name)[: _LONGEST - len(digest) - 1]
    return f"{readable}_{digest}"
