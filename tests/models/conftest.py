"""Fixtures of the tests of model adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.vendor_server import vendor_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.vendor_server import VendorServer


@pytest.fixture
def server() -> Iterator[VendorServer]:
    """Run a server that gives the answers of the test."""
    with vendor_server() as running:
        yield running
