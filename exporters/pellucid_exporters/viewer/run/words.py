"""Differences between two texts, word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final

from markupsafe import Markup, escape

from pellucid_exporters.stored.text import visible

MOST: Final = 2_000
"""Words of a text that are compared; the beginning and the end that are equal do not count."""

_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]")
_AROUND: Final = 12
"""Words that are shown before and after a change."""


def words(before: str, after: str) -> Markup:
    """Return a text with what was removed and added marked; what is equal is shortened."""
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    removed, added = old[start : len(old) - end], new[start : len(new) - end]
    head, tail = _short(old[:start], keeps_end=True), _short(old[len(old) - end :], keeps_start=True)
    return Markup('<p class="words">{}{}{}</p>').format(head, _changes(removed, added), tail)


def _changes(removed: Sequence[str], added: Sequence[str]) -> Markup:
    if len(removed) > MOST or len(added) > MOST:
        return _marked("del", removed[:MOST]) + _marked("ins", added[:MOST]) + Markup(" … ")
    shown = Markup()
    for kind, old_start, old_end, new_start, new_end in SequenceMatcher(None, removed, added).get_opcodes():
        if kind == "equal":
            shown += _short(removed[old_start:old_end], keeps_start=True, keeps_end=True)
        else:
            shown += _marked("del", removed[old_start:old_end]) + _marked("ins", added[new_start:new_end])
    return shown


def _marked(tag: str, some: Sequence[str]) -> Markup:
    return Markup(f"<{tag}>{{}}</{tag}>").format(_text(some)) if some else Markup()  # noqa: S704  (a constant)


def _short(some: Sequence[str], *, keeps_start: bool = False, keeps_end: bool = False) -> Markup:
    """Return words that are equal, without those that are far from any change."""
    if len(some) <= _AROUND * (keeps_start + keeps_end) + 2:
        return _text(some)
    first, last = some[: _AROUND * keeps_start], some[len(some) - _AROUND * keeps_end :]
    return _text(first) + Markup(" … ") + _text(last)


def _text(some: Sequence[str]) -> Markup:
    return escape(visible("".join(some)))
