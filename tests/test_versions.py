"""`docs/versions.md` is kept: no public name goes without a deprecation."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support.public_names import RECORDED, collect
from support.python_api import parameters, public_objects

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = collect()
BEFORE: dict[str, list[str]] = json.loads(RECORDED.read_text(encoding="utf-8"))


def changes(before: set[str], now: set[str]) -> tuple[list[str], list[str]]:
    """Return what breaks uses, and what is new. A parameter that has a default from now on breaks none."""
    gone = {line for line in before - now if line.replace(", required", ", optional") not in now}
    demanded = {line for line in now - before if line.endswith(", required") and f"{line.split()[0]}()" in before}
    return sorted(gone | demanded), sorted(now - before)


@pytest.mark.parametrize("section", sorted({*NOW, *BEFORE}))
def test_public_names_stay(section: str) -> None:
    """Each public name that was recorded still exists, and each new one is recorded."""
    broken, new = changes(set(BEFORE.get(section, ())), set(NOW.get(section, ())))
    assert not broken, (
        f"gone, or required by now: {broken}. These are public; docs/versions.md says how they are deprecated first"
    )
    assert not new, f"not recorded: {new}. Run PYTHONPATH=tests .venv/bin/python -m support.public_names"


def test_a_changed_signature_is_noticed() -> None:
    """A parameter that goes, moves or must be given breaks uses; an optional one only needs to be recorded."""

    def send(text: str, to: str = "all", *, later: bool) -> None: ...

    def wider(text: str, to: str = "all", *, later: bool = False, sign: bool = False) -> None: ...

    def narrower(to: str, *, later: bool, sign: bool) -> None: ...

    def lines(function: Callable[..., object]) -> set[str]:
        return set(parameters({"pellucid.send": function}))

    assert lines(send) == {
        "send()",
        "send text: place 1, required",
        "send to: place 2, optional",
        "send later: keyword, required",
    }
    assert changes(lines(send), lines(wider)) == (
        [],
        ["send later: keyword, optional", "send sign: keyword, optional"],
    )
    broken, _ = changes(lines(send), lines(narrower))
    assert broken == [
        "send sign: keyword, required",
        "send text: place 1, required",
        "send to: place 1, required",
        "send to: place 2, optional",
    ]


def test_public_names_mean_one_thing() -> None:
    """Two modules never have different things of one public name."""
    first: dict[str, object] = {}
    objects = public_objects()
    assert [
        path for path in objects if first.setdefault(path.rpartition(".")[2], objects[path]) is not objects[path]
    ] == []
