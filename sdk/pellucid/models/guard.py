"""Guard against calls to vendors, for test suites."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final

from pellucid.concurrency.block import Within
from pellucid.errors import ConfigError

_guards: Final[list[tuple[object, bool]]] = []
"""Active guards of the process, each with whether calls are allowed; the last one decides."""


def guarded_calls(*, are_allowed: bool) -> AbstractContextManager[None]:
    """Allow or refuse the calls of vendors' models within the block, in all threads."""
    return Within(_guards, (object(), are_allowed))


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
