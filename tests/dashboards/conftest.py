"""Fixtures for tests of dashboards and rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.promtool import HERE, Make, Trial, level

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@pytest.fixture
def trial(tmp_path: Path) -> Make:
    """Return what makes a trial of series of a process that is scraped all the time."""

    def make(series: dict[str, Sequence[float | None]]) -> Trial:
        longest = max(len(values) for values in series.values())
        return Trial(tmp_path=tmp_path, series={f"up{{{HERE}}}": level((1, longest)), **series})

    return make


@pytest.fixture
def anyio_backend() -> str:
    """Run tests on one event loop: they look at servers, and all other tests run on both loops."""
    return "asyncio"
