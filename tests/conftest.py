"""What all tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Run async tests on both event loops."""
    backend: str = request.param
    return backend


@pytest.fixture
def quiet_opentelemetry(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Refuse complaints of OpenTelemetry: of a span that is ended twice, or a context that is detached elsewhere."""
    yield
    names = ("opentelemetry.context", "opentelemetry.sdk.trace", "opentelemetry.trace")
    said = [record.getMessage() for record in caplog.get_records("call") if record.name.startswith(names)]
    assert said == []
