"""Fixtures of the tests of pages."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Run on one event loop: `pellucid view` serves its pages with uvicorn, which has asyncio only."""
    return "asyncio"
