"""How thin the runtime is: counts that a change may not exceed."""

from __future__ import annotations

import sys

import pytest

import pellucid
from bench.measure import BUDGETS, SDK, cycles, demo, executed, installed


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other Pythons count the lines of an expression otherwise")
def test_what_a_call_and_an_iteration_execute() -> None:
    """Lines of a plain tool call and of an iteration with it, and the modules that the call enters."""
    assert [(name, number) for name, number in executed() if number > BUDGETS[name]] == []


def test_what_users_see_and_install() -> None:
    """Public names, packages, and no modules that import each other."""
    assert len(pellucid.__all__) <= BUDGETS["public names of pellucid"]
    assert installed() <= BUDGETS["packages that pip installs"]
    assert cycles(SDK) == []


def test_what_the_demo_takes() -> None:
    """A program that shows a runtime is read like one."""
    assert demo() <= BUDGETS["code lines of the demo"]
