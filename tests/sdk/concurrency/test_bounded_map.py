"""Maps of limited size: which entries they keep, from any thread and in a forked child."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from pellucid.concurrency.bounded_map import BoundedMap


def keys(bounded: BoundedMap[str, int]) -> str:
    """Return the keys, the one to be evicted next first."""
    return "".join(key for key, _ in bounded.items())


def filled(bounded: BoundedMap[str, int], letters: str = "abc") -> BoundedMap[str, int]:
    """Put letters into a map."""
    for number, letter in enumerate(letters):
        bounded.put(letter, number)
    return bounded


def test_the_least_recently_used_entry_goes_first() -> None:
    """Reading an entry, and replacing it, is use."""
    bounded = filled(BoundedMap(3))
    assert (bounded.get("a"), bounded.put("b", 7)) == (0, 1)
    bounded.put("d", 3)
    assert keys(bounded) == "abd"
    assert (bounded.get("c"), bounded.get("b"), len(bounded)) == (None, 7, 3)


def test_the_oldest_entry_goes_first_if_use_does_not_count() -> None:
    """However often it was read or replaced."""
    bounded = filled(BoundedMap(3, by_use=False))
    assert (bounded.get("a"), bounded.put("a", 7), bounded.setdefault("a", 8)) == (0, 0, 7)
    bounded.put("d", 3)
    assert keys(bounded) == "bcd"


def test_weights_are_bounded() -> None:
    """Replaced, removed and cleared entries weigh nothing; the last one stays whatever its weight."""
    bounded: BoundedMap[str, int] = BoundedMap(9, most_weight=10)
    for letter in "abc":
        bounded.put(letter, 0, 3)
    bounded.put("c", 0, 4)
    assert keys(bounded) == "abc"
    assert (bounded.pop("a"), bounded.pop("a")) == (0, None)
    bounded.put("d", 0, 3)
    assert keys(bounded) == "bcd"
    bounded.put("e", 0, 99)
    assert keys(bounded) == "e"
    bounded.clear()
    bounded.put("f", 0, 5)
    bounded.put("g", 0, 5)
    assert keys(bounded) == "fg"


def test_spare_entries_go_before_others() -> None:
    """As long as there are any."""
    bounded = filled(BoundedMap(3, is_spare=lambda number: number == 1))
    bounded.put("d", 3)
    assert keys(bounded) == "acd"
    bounded.put("e", 4)
    assert keys(bounded) == "cde"


def test_one_of_many_threads_sets_a_default() -> None:
    """And all get the same value."""
    bounded: BoundedMap[str, object] = BoundedMap(10)
    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(lambda _: bounded.setdefault("a", object()), range(200)))
    assert len(set(values)) == 1


def test_a_destructor_may_use_the_map() -> None:
    """Evicted values are freed outside of the lock."""
    bounded: BoundedMap[str, object] = BoundedMap(1)

    class Value:
        def __del__(self) -> None:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(bounded.get, "b").result(timeout=10)

    bounded.put("a", Value())
    bounded.put("b", Value())
    assert bounded.put("c", 1) is None
    bounded.put("c", Value())
    bounded.clear()
    assert len(bounded) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
def test_a_forked_child_can_use_the_map() -> None:
    """Also if a thread of the parent held its lock."""
    bounded = filled(BoundedMap(3))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(bounded._lock.acquire).result()
        child = os.fork()
        if child == 0:
            os._exit(0 if bounded.get("a") == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0
        pool.submit(bounded._lock.release).result()
