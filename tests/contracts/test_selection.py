"""The part of the model contract that this suite collects."""

from __future__ import annotations

from itertools import combinations, product
from typing import ClassVar

import pytest

from support.contract_selection import ON_BOTH_LOOPS, RULES, ContractSubset, half, selected

VALUES = {"sample": ["a", "b", "c"], "way": ["whole", "streamed"], "loop": ["asyncio", "trio"]}


def test_half_of_the_tests_have_every_pair_of_values() -> None:
    """Of sample, way and event loop, no two values go untested together."""
    kept = half([dict(zip(VALUES, values, strict=True)) for values in product(*VALUES.values())])
    assert len(kept) == 6
    for one, other in combinations(VALUES, 2):
        assert {(test[one], test[other]) for test in kept} == {*product(VALUES[one], VALUES[other])}


def test_subsets_name_rules_and_samples_of_the_contract() -> None:
    """A misspelt rule or sample is refused at collection, not skipped silently."""

    class Misspelt(ContractSubset):
        rules: ClassVar = {"tool_are_sent": ()}

    class Unknown(ContractSubset):
        rules: ClassVar = {"finish_reasons_are_told": ["lenght"]}

    assert ON_BOTH_LOOPS <= RULES
    with pytest.raises(LookupError, match=r"Misspelt\.rules: the contract has no \['tool_are_sent'\]"):
        selected("test_tools_are_sent", [], Misspelt)
    with pytest.raises(LookupError, match=r"finish_reasons_are_told has no sample \['lenght'\]"):
        selected("test_finish_reasons_are_told", [], Unknown)
