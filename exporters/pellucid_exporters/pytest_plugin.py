"""Pytest plugin with the fixtures `telemetry` and `tape`, available wherever Pellucid is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid.replay import Tape
    from pellucid_exporters.testing import Captured

# The assertions of subclasses of `ModelContract` are in this module.
pytest.register_assert_rewrite("pellucid.testing.asking", "pellucid.testing.contract")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker `tape`."""
    config.addinivalue_line("markers", "tape(path): the recorded run that the fixture `tape` loads")


@pytest.fixture
def tape(request: pytest.FixtureRequest) -> Tape:
    """Load the tape of `@pytest.mark.tape(path)`.

    The path is relative to pytest's root folder, or else to the folder of the test.

    Raises:
        pytest.UsageError: the marker is missing, or there is no such file.
        TapeError: the file is no tape.
    """
    from pellucid.replay import Tape

    marker = request.node.get_closest_marker("tape")
    if marker is None or len(marker.args) != 1 or marker.kwargs:
        raise pytest.UsageError(
            f"{request.node.nodeid}: the fixture 'tape' needs one path: @pytest.mark.tape('tests/tapes/….jsonl')"
        )
    places = [folder / marker.args[0] for folder in (request.config.rootpath, request.path.parent)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise pytest.UsageError(
            f"{request.node.nodeid}: there is no tape {' or '.join(map(str, places))}; "
            f"write it with: pellucid test RUN --tape {marker.args[0]}"
        )
    return Tape.load(found)


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
