"""The marker `cases` of the pytest plugin."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers", "cases(path, tags): run the test with each case of a set, as its argument `case`"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the marker `cases` once for each case of the set; the ids of the tests are those of the cases.

    The path is relative to pytest's root folder, or else to the folder of the test.
    """
    marker = metafunc.definition.get_closest_marker("cases")
    if marker is None:
        return
    name = metafunc.definition.nodeid
    if len(marker.args) != 1 or not set(marker.kwargs) <= {"tags"}:
        pytest.fail(f"{name}: write the marker as @pytest.mark.cases('tests/….jsonl', tags=[…])", pytrace=False)
    if "case" not in metafunc.fixturenames:
        pytest.fail(f"{name}: a test with the marker 'cases' has an argument `case`", pytrace=False)
    from pellucid_experiments.case_files import CaseError, load_cases

    folders = (metafunc.config.rootpath, metafunc.definition.path.parent)
    places = [folder / marker.args[0] for folder in folders]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        remedy = f"write it with: pellucid cases add RUN --to {marker.args[0]}"
        pytest.fail(f"{name}: there is no set {' or '.join(map(str, places))}; {remedy}", pytrace=False)
    tags = marker.kwargs.get("tags", ())
    try:
        cases = load_cases(found, [tags] if isinstance(tags, str) else tags)
    except CaseError as error:
        pytest.fail(str(error), pytrace=False)
    if not cases:
        pytest.fail(f"{found}: the set has no case", pytrace=False)  # and not a test that is skipped
    metafunc.parametrize("case", cases, ids=[case.id for case in cases])
