"""Pytest plugin with the fixture `telemetry`, available wherever Pellucid is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid_exporters.testing import Captured

# The assertions of subclasses of `ModelContract` are in this module.
pytest.register_assert_rewrite("pellucid.testing.asking", "pellucid.testing.contract")


@pytest.fixture
def telemetry(request: pytest.FixtureRequest) -> Iterator[Captured]:
    """Capture the telemetry of a test in memory, also of agents without `telemetry=`; see `capture()`.

    It is checked at the end of the test; see `check_telemetry()`. The fixture's parameter is the recorder, by default
    that of `PELLUCID_RECORDER`: `@pytest.mark.parametrize("telemetry", ["fast", "sdk"], indirect=True)`.
    """
    # Imported here: pytest imports this module in every session where Pellucid is installed.
    from pellucid_exporters.testing import capture, check_telemetry

    with capture(recorder=getattr(request, "param", None)) as captured:
        yield captured
    if captured.is_checked:
        check_telemetry(captured)
