"""Differences of two texts, word by word, as `git diff --word-diff` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Final

CONTEXT: Final = 8
"""Words that are shown before and after a change."""

MOST_WORDS: Final = 400
"""Words between the first and the last change that are compared; more are one change, since that takes longer."""

_WORDS: Final = re.compile(r"\w+\s*|[^\w\s]\s*|\s+")
_ELLIPSIS: Final = "…"


def word_diff(old: str, new: str) -> str:
    """Return the words that two texts differ in, as `[-old-]{+new+}`, with some words around them."""
    pieces = list(_changes(_WORDS.findall(old), _WORDS.findall(new)))
    shown: list[str] = []
    for index, (before, after) in enumerate(pieces):
        if before == after:
            shown.append(_shortened(before, is_first=not index, is_last=index == len(pieces) - 1))
        else:
            removed, added = "".join(before), "".join(after)
            shown.append((removed and f"[-{removed}-]") + (added and f"{{+{added}+}}"))
    return "".join(shown)


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield the parts of two texts in order: the same in both, or different."""
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    yield old[:start], new[:start]
    inner, other = old[start : len(old) - end], new[start : len(new) - end]
    if max(len(inner), len(other)) > MOST_WORDS:
        yield inner, other
    else:
        for _, first, last, lower, upper in SequenceMatcher(None, inner, other, autojunk=False).get_opcodes():
            yield inner[first:last], other[lower:upper]
    yield old[len(old) - end :], new[len(new) - end :]


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))


def _shortened(words: Sequence[str], *, is_first: bool, is_last: bool) -> str:
    """Return words that are the same in both texts, without those far from a change."""
    before = [] if is_first else words[:CONTEXT]
    after = [] if is_last else words[-CONTEXT:]
    if len(before) + len(after) >= len(words):
        return "".join(words)
    return f"{''.join(before)}{_ELLIPSIS}{''.join(after)}"
