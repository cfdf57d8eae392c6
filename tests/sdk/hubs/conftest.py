"""Fixtures of the tests of hubs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pellucid import DiscoveryProvider
from support.discovery import Answering, AnsweringHub


@pytest.fixture(params=["provider", "cached"])
def make(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    """Return a function that makes a provider of an answer, direct or behind a cache."""

    def provider(answer: Callable[[], Any]) -> Any:
        return Answering(answer) if request.param == "provider" else DiscoveryProvider(AnsweringHub(answer), id="odd")

    return provider
