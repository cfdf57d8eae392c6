"""Server and workers of the demo: `pellucid serve` and `pellucid worker`, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import requests

from pellucid.errors import ConfigError, PellucidError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GRACE: Final = 10.0
"""Seconds in which a process ends after SIGTERM; then it is killed."""
_ALL: Final = ("--drain-timeout", "4")
START: Final = 60.0
"""Seconds in which the server must answer."""


class Processes:
    """Processes by name.

    Args:
        folder: Where the standard error of each is kept.
        arguments: Arguments of all.
        environment: Variables of all.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._arguments = arguments
        self._environment = {**os.environ, **environment}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: str, *arguments: str, **environment: str) -> None:
        """Start a subcommand of `pellucid`."""
        with self._errors(name).open("w") as errors:
            self._running[name] = subprocess.Popen(  # noqa: S603  (a fixed command)
                [sys.executable, "-m", "pellucid", command, *self._arguments, *_ALL, "--service", name, *arguments],
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C is for the demo
            )

    def wait_for(self, url: str) -> None:
        """Wait until the server answers.

        Raises:
            PellucidError: it does not in time, or has ended.
        """
        for _ in range(int(START / 0.1)):
            self.check()
            try:
                requests.get(f"{url}/healthz", timeout=1)
            except requests.RequestException:
                time.sleep(0.1)
            else:
                return
        raise PellucidError(f"the server of the demo does not answer after {START:g} s")

    def kill(self, name: str) -> int:
        """Kill a process with SIGKILL, on Windows with TerminateProcess, and return its exit code."""
        process = self._running.pop(name)
        process.kill()
        return process.wait()

    def check(self) -> None:
        """Check that all processes run.

        Raises:
            ConfigError: one could not start, because an option or its environment is wrong.
            PellucidError: one has ended.
        """
        for name, process in self._running.items():
            if process.poll() is not None:
                said = self._errors(name).read_text().strip().rpartition("\n")[2]
                failure = ConfigError if process.returncode == 2 else PellucidError  # noqa: PLR2004
                raise failure(f"{name} ended with exit code {process.returncode}: {said.removeprefix('pellucid: ')}")

    def stop(self) -> None:
        """Let all processes give their runs back, write their telemetry, and end."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()

    def _errors(self, name: str) -> Path:
        return self._folder / f"{name}.log"
