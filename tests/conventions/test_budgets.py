"""Budgets of the runtime: lines, modules and packages that a change may not exceed."""

from __future__ import annotations

import sys

import pytest

import pellucid
from bench.measure import BUDGETS, SDK, cycles, demo, executed, installed


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other Pythons count the lines of an expression otherwise")
def test_what_a_call_and_an_iteration_execute() -> None:
    """A tool call and an iteration execute no more lines and modules than their budgets allow."""
    assert [(name, number) for name, number in executed() if number > BUDGETS[name]] == []


def test_what_users_see_and_install() -> None:
    """The public names and installed packages are within their budgets, and no modules import each other."""
    assert len(pellucid.__all__) <= BUDGETS["public names of pellucid"]
    assert installed() <= BUDGETS["packages that pip installs"]
    assert cycles(SDK) == []


def test_what_the_demo_takes() -> None:
    """The code of the demo is no longer than its budget."""
    assert demo() <= BUDGETS["code lines of the demo"]
