"""The fixture `tape` of the pytest plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pellucid_replay.tape import Tape


@pytest.fixture
def tape(request: pytest.FixtureRequest) -> Tape:
    """Load the tape of `@pytest.mark.tape(path)`.

    The path is relative to pytest's root folder, or else to the folder of the test.

    Raises:
        pytest.UsageError: the marker is missing, or there is no such file.
        TapeError: the file is no tape.
    """
    from pellucid_replay.tape import Tape

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
