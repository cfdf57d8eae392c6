"""`docs/versions.md` is kept: no public name goes without a deprecation."""

from __future__ import annotations

import json

import pytest

from support.public_names import RECORDED, collect

NOW = collect()
BEFORE: dict[str, list[str]] = json.loads(RECORDED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("section", sorted({*NOW, *BEFORE}))
def test_public_names_stay(section: str) -> None:
    """What was recorded is still there, and what is new is recorded."""
    now, before = set(NOW.get(section, ())), set(BEFORE.get(section, ()))
    gone, new = sorted(before - now), sorted(now - before)
    assert not gone, (
        f"removed or renamed: {gone}. These are public; docs/versions.md says how they are deprecated first"
    )
    assert not new, f"not recorded: {new}. Run PYTHONPATH=tests .venv/bin/python -m support.public_names"
