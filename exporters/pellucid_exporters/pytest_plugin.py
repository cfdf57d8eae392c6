"""Pytest plugin: fixtures, the marker `cases`, and `--no-model-calls`; active wherever Pellucid is installed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pellucid_exporters.testing import Captured

# The fixture `tape` and the marker `cases` are of packages above this one.
pytest_plugins = ("pellucid_replay.pytest_plugin", "pellucid_experiments.pytest_plugin")

# The assertions of subclasses of `ModelContract` are in this module.
pytest.register_assert_rewrite("pellucid.testing.asking", "pellucid.testing.contract")


_NO_MODEL_CALLS: Final = "no_model_calls"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--no-model-calls`, also as a setting."""
    text = "Refuse calls of vendors' models, except in tests with the marker model_calls."
    group = parser.getgroup("pellucid")
    group.addoption("--no-model-calls", action="store_true", dest=_NO_MODEL_CALLS, help=text)
    parser.addini(_NO_MODEL_CALLS, text, type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers; refuse calls of models from here on if that is asked for."""
    config.addinivalue_line("markers", "tape(path): the recorded run that the fixture `tape` loads")
    config.addinivalue_line("markers", "telemetry(fixed, capture, recorder): arguments of the fixture `telemetry`")
    config.addinivalue_line("markers", "model_calls: may call vendors' models in spite of --no-model-calls")
    if _refuses(config):
        from pellucid.testing import no_model_calls

        stack = ExitStack()
        stack.enter_context(no_model_calls())
        config.add_cleanup(stack.close)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Allow calls of models in a test with the marker `model_calls`, its fixtures included."""
    if not _refuses(item.config) or item.get_closest_marker("model_calls") is None:
        return (yield)
    from pellucid.models.guard import guarded_calls

    with guarded_calls(are_allowed=True):
        return (yield)


def _refuses(config: pytest.Config) -> bool:
    return bool(config.getoption(_NO_MODEL_CALLS) or config.getini(_NO_MODEL_CALLS))


@pytest.fixture
def telemetry(request: pytest.FixtureRequest) -> Iterator[Captured]:
    """Capture the telemetry of a test in memory, also of agents without `telemetry=`; see `capture()`.

    It is checked at the end of the test; see `check_telemetry()`. Times and ids are those of production: slow hubs are
    slow. `@pytest.mark.telemetry(fixed=True)` gives both the same values in each run of the test; the marker takes the
    arguments of `capture()`. The fixture's parameter is the recorder:
    `@pytest.mark.parametrize("telemetry", ["fast", "sdk"], indirect=True)`.
    """
    # Imported here: pytest imports this module in every session where Pellucid is installed.
    from pellucid_exporters.testing import capture, check_telemetry

    marker = request.node.get_closest_marker("telemetry")
    if marker is not None and marker.args:
        raise pytest.UsageError(f"{request.node.nodeid}: the marker 'telemetry' takes keywords, such as fixed=True")
    asked = dict(marker.kwargs) if marker is not None else {}
    with capture(**{"fixed": False, "recorder": getattr(request, "param", None), **asked}) as captured:
        yield captured
    if captured.is_checked:
        check_telemetry(captured)
