"""Two runs side by side, by what they did: iterations by the tools that were called in them, calls by arguments."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Final, TypeAlias, TypeVar

from pellucid import semconv
from pellucid_exporters.stored.rows import SpanRow

_T = TypeVar("_T")
Pairs: TypeAlias = list[tuple[_T | None, _T | None]]
_Iteration: TypeAlias = list[SpanRow]
_Key: TypeAlias = Callable[[Any], Hashable]

_ORDER: Final = {semconv.DISCOVERY: 0, semconv.COMPOSE: 1, semconv.INFERENCE: 2, semconv.DISPATCH: 3}


def aligned(first: Sequence[SpanRow], second: Sequence[SpanRow]) -> Pairs[SpanRow]:
    """Return the boundaries of two runs in pairs, in the order of the first; one that has no twin is alone."""
    pairs: Pairs[SpanRow] = []
    for left, right in _align(_iterations(first), _iterations(second), (_calls, _names)):
        for phase in _ORDER:
            one, other = ([span for span in each or () if span.phase == phase] for each in (left, right))
            pairs += _align(one, other, (_call,)) if phase == semconv.DISPATCH else _matched(one, other)
    return _moved(pairs)


def _iterations(spans: Sequence[SpanRow]) -> list[_Iteration]:
    found: dict[int, _Iteration] = {}
    for span in spans:
        if span.phase in _ORDER:
            found.setdefault(span.iteration or 0, []).append(span)
    return [found[number] for number in sorted(found)]


def _align(first: Sequence[_T], second: Sequence[_T], keys: Sequence[_Key]) -> Pairs[_T]:
    """Return items in pairs: those with equal keys in the same order; the others by the next keys, else in order."""
    if not (keys and first and second):
        return list(zip_longest(first, second))
    pairs: Pairs[_T] = []
    key, *others = keys
    matcher = SequenceMatcher(None, [key(item) for item in first], [key(item) for item in second], autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        pairs += _align(first[i1:i2], second[j1:j2], [] if tag == "equal" else others)
    return pairs


def _matched(first: Sequence[SpanRow], second: Sequence[SpanRow]) -> Pairs[SpanRow]:
    """Return the boundaries of one phase in pairs: discoveries by provider, the others by their order."""
    left, right = _numbered(first), _numbered(second)
    return [(left.get(key), right.get(key)) for key in dict.fromkeys([*left, *right])]


def _numbered(spans: Sequence[SpanRow]) -> dict[tuple[str, int], SpanRow]:
    found: dict[tuple[str, int], SpanRow] = {}
    for span in spans:
        target = str(span.attributes.get(semconv.PROVIDER_ID))
        found[target, sum(key == target for key, _ in found)] = span
    return found


def _moved(pairs: Pairs[SpanRow]) -> Pairs[SpanRow]:
    """Return pairs in which a call without a twin has that of an equal call in another iteration."""
    alone: dict[Hashable, list[SpanRow]] = {}
    for left, right in pairs:
        if left is None and right is not None and right.phase == semconv.DISPATCH:
            alone.setdefault(_call(right), []).append(right)
    taken = set[str]()
    found: Pairs[SpanRow] = []
    for left, right in pairs:
        twin = right
        if left is not None and right is None and (candidates := alone.get(_call(left))):
            twin = candidates.pop(0)
            taken.add(twin.span_id)
        found.append((left, twin))
    return [pair for pair in found if pair[0] is not None or pair[1] is None or pair[1].span_id not in taken]


def _calls(iteration: _Iteration) -> Hashable:
    return tuple(_call(span) for span in iteration if span.phase == semconv.DISPATCH)


def _names(iteration: _Iteration) -> Hashable:
    return tuple(span.name for span in iteration if span.phase == semconv.DISPATCH)


def _call(span: SpanRow) -> Hashable:
    return span.name, str(span.attributes.get(semconv.INPUT_DIGEST))
