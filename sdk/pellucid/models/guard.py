"""Guard against calls to vendors, for test suites."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pellucid.errors import ConfigError

_guards: Final[list[tuple[object, bool]]] = []
"""Active guards of the process, each with whether calls are allowed; the last one decides."""


@contextmanager
def guarded_calls(*, are_allowed: bool) -> Iterator[None]:
    """Allow or refuse the calls of vendors' models within the block, in all threads."""
    guard = (object(), are_allowed)
    _guards.append(guard)
    try:
        yield
    finally:
        _guards.remove(guard)


def check_allowed(model: object) -> None:
    """Check that a vendor's model may be called.

    Raises:
        ConfigError: the test suite refuses calls.
    """
    if _guards and not _guards[-1][1]:
        raise ConfigError(
            f"{model!r} was called, but no_model_calls() is active; in the test, replace the model: "
            f"`with agent.override(model=ScriptedModel(...)):`; a test that is meant to call it needs "
            f"`@pytest.mark.model_calls`"
        )
