"""Tests of the model contract that our own suite collects. Users inherit `ModelContract` and get all of them.

Most rules do not depend on the event loop. Of their tests, half is collected: every sample is still tested whole and
streamed, and on both event loops. Rules about streams, cancellation and event loops are collected in full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from pellucid.testing import ModelContract

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import pytest

RULES: Final = frozenset(name.removeprefix("test_") for name in dir(ModelContract) if name.startswith("test_"))

ON_BOTH_LOOPS: Final = frozenset(
    {
        "a_stream_can_be_read_from_anywhere",
        "a_stream_left_early_is_closed",
        "a_stream_that_breaks_is_an_error",
        "calls_at_once_do_not_mix",
        "cancellation_passes_through",
        "it_works_in_several_event_loops",
        "pieces_are_yielded_as_they_arrive",
    }
)
"""Rules whose outcome can depend on the event loop."""


class ContractSubset(ModelContract):
    """The contract for a model that delegates to `FunctionModel`, which is held to the whole contract.

    Attributes:
        rules: The rules to collect, with their samples; an empty collection stands for all samples.
    """

    rules: ClassVar[Mapping[str, Collection[str]]]


def selected(name: str, items: Sequence[pytest.Function], contract: type[ModelContract]) -> list[pytest.Function]:
    """Return the tests to collect of one rule.

    Args:
        name: Name of the test function.
        items: All its tests.
        contract: The test class.

    Raises:
        LookupError: a subset names a rule or a sample that does not exist.
    """
    rule = name.removeprefix("test_")
    tests = [(item, parameters(item)) for item in items]
    if rule not in ON_BOTH_LOOPS:
        kept = half([given for _, given in tests])
        tests = [(item, given) for item, given in tests if given in kept]
    if issubclass(contract, ContractSubset):
        if unknown := {*contract.rules} - RULES:
            raise LookupError(f"{contract.__name__}.rules: the contract has no {sorted(unknown)}")
        if rule not in contract.rules:
            return []
        samples = {*contract.rules[rule]}
        if unknown := samples - {value for _, given in tests for value in given.values()}:
            raise LookupError(f"{contract.__name__}.rules: {rule} has no sample {sorted(unknown)}")
        tests = [(item, given) for item, given in tests if not samples or samples & {*given.values()}]
    return [item for item, _ in tests]


def parameters(item: pytest.Function) -> Mapping[str, Any]:
    """Return the parameters of a test by name."""
    return item.callspec.params if hasattr(item, "callspec") else {}


def half(tests: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the tests whose values have positions, among the values of their parameter, with an even sum.

    Of sample, way and event loop, that keeps every pair of values; of two parameters or one, about half of the tests.
    """
    values: dict[str, dict[Any, int]] = {}
    for test in tests:
        for name, value in test.items():
            of_name = values.setdefault(name, {})
            of_name.setdefault(value, len(of_name))
    return [test for test in tests if sum(values[name][value] for name, value in test.items()) % 2 == 0]
