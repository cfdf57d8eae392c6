"""The pytest fixture `telemetry`, there for everybody who has Pellucid installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid_exporters.testing import Captured

# Where the assertions are of those who inherit `ModelContract`.
pytest.register_assert_rewrite("pellucid.testing.asking", "pellucid.testing.contract")


@pytest.fixture
def telemetry() -> Iterator[Captured]:
    """Keep the telemetry of a test in memory, and be what agents without `telemetry=` use; see `capture()`.

    When the test is over it is checked; see `check_telemetry()`.
    """
    # Imported here: every pytest session of those who installed Pellucid imports this module.
    from pellucid_exporters.testing import capture, check_telemetry

    with capture() as captured:
        yield captured
    if captured.is_checked:
        check_telemetry(captured)
