"""A long run costs per iteration what a short one does."""

from __future__ import annotations

import pytest

from bench.growth import blocks, measure

pytestmark = pytest.mark.anyio


async def test_an_iteration_records_as_much_at_the_end_as_at_the_beginning() -> None:
    """Of 200 iterations with 100 tools, the last 20 record as many bytes as the second 20, within a tenth."""
    sizes, _ = await measure()
    second, last = blocks(sizes)[1], blocks(sizes)[-1]
    assert second > 0
    assert abs(last - second) < 0.1 * second
