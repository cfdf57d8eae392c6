"""The table of `docs/dependencies.md`: what an installation brings, and its licences.

`python -m distribution.dependencies` writes it, from what is installed beside this Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib.metadata import distribution, metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE: Final = Path(__file__).parents[2] / "docs" / "dependencies.md"
COMPATIBLE: Final = {
    "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CNRI-Python", "LGPL-3.0-only", "MIT", "MIT-0", "MPL-2.0",
    "PSF-2.0",
}  # fmt: skip
"""Licences of packages on which one that has Apache-2.0 may depend. A new one is added once somebody has read it."""

_TABLE: Final = re.compile(r"^\| package \|.*?(?=^\n|\Z)", re.MULTILINE | re.DOTALL)
_WORDS: Final = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",  # of an unnamed kind
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
"""SPDX identifiers of what packages write instead."""


def licence(name: str) -> str:
    """Return the licence that a package declares, as an SPDX expression if it is one or a well-known name."""
    found = metadata(name)
    classified = [text.split(" :: ")[-1] for text in found.get_all("Classifier", ()) if text.startswith("License :: ")]
    joined = " OR ".join(_WORDS.get(text, text) for text in classified)
    declared = (*found.get_all("License-Expression", ()), *found.get_all("License", ()), joined)
    text = next((lines[0].strip() for given in declared if (lines := given.strip().splitlines())), "unknown")
    return _WORDS.get(text, text)


def required(name: str, extras: Iterable[str] = ()) -> set[str]:
    """Return the canonical names of all packages that an installation brings, directly or not, for this Python."""
    found: set[str] = set()
    waiting = [(canonicalize_name(name), frozenset(extras))]
    seen = set(waiting)
    while waiting:
        package, wanted = waiting.pop()
        for line in distribution(package).requires or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                other = (canonicalize_name(requirement.name), frozenset(requirement.extras))
                found.add(other[0])
                waiting += {other} - seen
                seen.add(other)
    return found - {canonicalize_name(name)}


def table() -> str:
    """Return the table: one line for each package, with those extras that bring it."""
    extras = set(metadata("pellucid").get_all("Provides-Extra", ())) - {"all"}
    always = required("pellucid")
    by_extra = {extra: required("pellucid", [extra]) for extra in sorted(extras)}
    lines = ["| package | licence | comes with |", "|---|---|---|"]
    for package in sorted(required("pellucid", ["all"]) | always):
        origin = (
            "always" if package in always else ", ".join(f"`{e}`" for e, found in by_extra.items() if package in found)
        )
        lines.append(f"| {package} | {licence(package)} | {origin} |")
    return "\n".join(lines) + "\n"


def listed() -> dict[str, str]:
    """Return the licences on the page, by package."""
    [shown] = _TABLE.findall(PAGE.read_text(encoding="utf-8"))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown.splitlines()[2:]]
    return {name: text for name, text, _ in cells}


def refused(licences: dict[str, str]) -> dict[str, str]:
    """Return the packages without a known licence: all that `AND` joins, and one of those that `OR` joins."""
    return {
        name: text
        for name, text in licences.items()
        if not any(set(re.split(r" AND ", choice.strip("()"))) <= COMPATIBLE for choice in text.split(" OR "))
    }


def main() -> None:
    """Write the table anew."""
    PAGE.write_text(_TABLE.sub(lambda _: table(), PAGE.read_text(encoding="utf-8"), count=1), encoding="utf-8")


if __name__ == "__main__":
    main()
