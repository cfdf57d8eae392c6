"""Bound of the steps of a check: where alternatives of a schema meet again, it may need exponentially many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final

from pellucid.tools.schema_graph import Graph, Node
from pellucid.types import JSONObject, JSONValue

MAX_STEPS: Final = 1_000_000
"""Evaluations of a part of a schema that one check may take by an exact count, which takes up to a second."""

MAX_STEPS_OF_ISSUES: Final = 10_000
"""Evaluations that a list of issues may take: the library makes an error of each misfit, in about 20 microseconds."""

_FEW: Final = 30_000_000
"""Evaluations that need no exact count, about a second."""

_ALWAYS_FEW: Final = 8
"""Evaluations for one value for which values need no count."""

_MOST_LEVELS: Final = 256
"""Levels of a value; the library refuses those with more than 255."""


class Steps:
    """Count of the evaluations that checks against a valid schema take.

    Attributes:
        most: The most evaluations for one value inside of a value; None without a bound that matters.
    """

    def __init__(self, schema: JSONObject) -> None:
        graph = Graph(schema)
        self._nodes, self._ranks = graph.nodes, _ranks(graph.nodes)
        self._is_bounded = graph.is_bounded and len(self._ranks) == len(self._nodes)
        self.most = self._most() if self._is_bounded else None

    def are_few(self, value: JSONValue) -> bool:
        """Return whether checks of a value take few evaluations by the number of values inside of it."""
        if self.most is None:
            return False
        return self.most <= _ALWAYS_FEW or _has_at_most(_FEW // self.most, value)

    def exceed(self, limit: int, value: JSONValue, *, is_quick: bool) -> bool:
        """Return whether a check may take more evaluations than a limit, in as many steps at most.

        Args:
            limit: The number of evaluations.
            value: The value; for a quick check, as `scalars_first` returns it.
            is_quick: Whether the check leaves a branch at its first misfit, as one that lists no issues does.
        """
        if not self._is_bounded:
            return True
        pending: list[tuple[JSONValue, dict[int, int]]] = [(value, {0: 1})]
        while pending:
            item, starts = pending.pop()
            members: defaultdict[Any, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
            is_container = isinstance(item, dict | list)
            for number, times in self._applied(starts):
                node = self._nodes[number]
                is_parent = is_container and node.is_parent
                limit -= times * (1 + len(item)) if is_parent else times
                if limit < 0:
                    return True
                if is_parent:
                    for key, part in _parts(node, item, is_quick=is_quick):
                        limit -= times
                        members[key][part] += times
            pending += [(item[key], parts) for key, parts in members.items()]
        return False

    def _applied(self, starts: dict[int, int]) -> Iterator[tuple[int, int]]:
        """Yield the parts that apply to a value and how often, by counts of paths: no part is visited twice."""
        times, queue = dict(starts), [(self._ranks[number], number) for number in starts]
        heapify(queue)
        while queue:
            _, number = heappop(queue)
            yield number, times[number]
            for other in self._nodes[number].same:
                if other not in times:
                    heappush(queue, (self._ranks[other], other))
                times[other] = times.get(other, 0) + times[number]

    def _most(self) -> int | None:
        """Return the most evaluations for one value on any level."""
        level = dict.fromkeys(self._ranks, 1)
        below = dict.fromkeys(self._ranks, 0)
        most, seen = 0, set[tuple[int, ...]]()
        for _ in range(_MOST_LEVELS):
            for number in reversed(self._ranks):  # parts for the same value first
                node = self._nodes[number]
                level[number] += sum(level[other] for other in node.same)
                level[number] += max(_most_below(node, kind, below) for kind in (dict, list))
            most = max(most, level[0])
            numbers = tuple(level.values())
            if most > _FEW:
                return None
            if numbers in seen:
                break
            seen.add(numbers)
            level, below = dict.fromkeys(self._ranks, 0), level
        return most


def scalars_first(value: JSONValue) -> JSONValue:
    """Return an equal value whose objects begin with their scalars, so that a wrong `kind` ends a branch at once."""
    root = [value]
    pending: list[tuple[Any, Any]] = [(root, 0)]
    while pending:
        holder, key = pending.pop()
        item = holder[key]
        if isinstance(item, dict):
            item = dict(sorted(item.items(), key=lambda member: isinstance(member[1], dict | list)))
            pending += [(item, name) for name, member in item.items() if isinstance(member, dict | list)]
        elif isinstance(item, list):
            item = list(item)
            pending += [(item, place) for place, member in enumerate(item) if isinstance(member, dict | list)]
        holder[key] = item
    return root[0]


def _has_at_most(number: int, value: JSONValue) -> bool:
    """Return whether there are no more values inside of a value than a number."""
    pending = [value]
    for item in pending:  # which grows
        if isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        if len(pending) > number:
            return False
    return True


def _most_below(node: Node, kind: type, below: dict[int, int]) -> int:
    """Return the most evaluations for one value on a level below a value of a kind."""
    named = node.named.values() if kind is dict else (part for part in node.places if part is not None)
    some = max((below[part] for part in (*named, *([node.rest[kind]] if kind in node.rest else ()))), default=0)
    return some + sum(below[part] for part in node.every[kind])


def _parts(node: Node, item: Any, *, is_quick: bool) -> Iterator[tuple[Any, int]]:
    """Yield the keys of members with the parts that are evaluated for them."""
    kind = type(item)
    every, rest = node.every[kind], node.rest.get(kind)
    if every:
        yield from ((key, part) for key in (item if kind is dict else range(len(item))) for part in every)
    if kind is list:
        yield from ((key, part) for key, part in enumerate(node.places[: len(item)]) if part is not None)
        if rest is not None:
            yield from ((key, rest) for key in range(len(node.places), len(item)))
        return
    is_wrong = is_quick and _is_wrong(node, item)
    for key in item if rest is not None else node.named.keys() & item.keys():
        if (part := node.named.get(key, rest)) is not None and not (is_wrong and isinstance(item[key], dict | list)):
            yield key, part


def _is_wrong(node: Node, item: JSONObject) -> bool:
    """Return whether a check leaves an object before its members that are containers."""
    if any(name not in item for name in node.required):
        return True
    found = ((item[name], texts) for name, texts in node.texts.items() if name in item)
    return any(not isinstance(text, dict | list) and text not in texts for text, texts in found)


def _ranks(nodes: list[Node]) -> dict[int, int]:
    """Return places in an order in which parts precede those for the same value; fewer if some refer to themselves."""
    missing = [0] * len(nodes)
    for node in nodes:
        for other in node.same:
            missing[other] += 1
    order = [number for number, count in enumerate(missing) if not count]
    for number in order:  # which grows
        for other in nodes[number].same:
            missing[other] -= 1
            if not missing[other]:
                order.append(other)
    return {number: rank for rank, number in enumerate(order)}
