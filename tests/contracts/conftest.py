"""Collect a part of the model contract for each model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid.testing import ModelContract
from support.contract_selection import selected

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: Any, name: str) -> Generator[None, Any, Any]:
    """Select among the tests that a class inherits from the contract."""
    items = yield
    if isinstance(items, list) and isinstance(collector, pytest.Class) and issubclass(collector.obj, ModelContract):
        return selected(name, items, collector.obj)
    return items
