"""A process that plays a scene: it prints its address, and each order once it is obeyed."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class SceneProcess:
    """A running process. Attributes: url: the address that it printed.

    Args:
        name: Its name in messages.
        command: Its command.
        log: File to which its standard error is appended.
        environment: Variables beside those of this process.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, **environment: str) -> None:
        self._name = name
        self._log = log
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **environment},
            )
        self.url = self._heard()

    def order(self, what: str) -> None:
        """Tell it to `break` or to `heal`, and wait until it obeys."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        assert self._heard() == what

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self.stop()

    def stop(self) -> None:
        """End it as its users do."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _heard(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            pytest.fail(f"the application {self._name!r} has ended:\n{self._log.read_text()[-4000:]}")
        return line
