"""What tests of model adapters share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.vendor_server import vendor_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.vendor_server import VendorServer


@pytest.fixture
def server() -> Iterator[VendorServer]:
    """Run a server that speaks for a vendor, and says what the test tells it."""
    with vendor_server() as running:
        yield running
