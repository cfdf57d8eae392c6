"""What all tests share."""

from __future__ import annotations

import gc
import importlib
import signal
from typing import TYPE_CHECKING, Any

import pytest

from pellucid_exporters.testing import Captured, check_telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_configure() -> None:
    """Let the processes that tests start be interrupted: a shell's background job ignores that, and so would they."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Keep modules and collected tests out of what `gc.collect()` looks at: many tests do that, some in a loop."""
    # It looks for what holds trio's random numbers when its plugin imports it, and would find nothing that is frozen.
    importlib.import_module("hypothesis")
    gc.collect()
    gc.freeze()


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run async tests on both event loops."""
    backend: str = request.param
    return backend


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the telemetry of every `with capture()` when it is left without an error, not only of the fixture's."""
    leave = Captured.__exit__

    def leave_and_check(captured: Captured, *error: Any) -> None:
        leave(captured, *error)
        if error[0] is None and captured.is_checked:
            check_telemetry(captured)

    monkeypatch.setattr(Captured, "__exit__", leave_and_check)


@pytest.fixture
def quiet_opentelemetry(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Refuse complaints of OpenTelemetry: of a span that is ended twice, or a context that is detached elsewhere."""
    yield
    names = ("opentelemetry.context", "opentelemetry.sdk.trace", "opentelemetry.trace")
    said = [record.getMessage() for record in caplog.get_records("call") if record.name.startswith(names)]
    assert said == []
