"""Processes that the demo starts."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from pellucid.errors import PellucidError

if TYPE_CHECKING:
    from types import TracebackType

    from pellucid_commands.demo.durable.options import ProcessOptions

Role: TypeAlias = Literal["worker", "jobs", "server"]

GRACE: Final = 5.0
"""Seconds in which a process ends after its standard input was closed; then it is killed."""


class DemoFailed(PellucidError):
    """The demo could not continue."""


class Processes:
    """Processes of the demo by name; those that run end with the block.

    A process ends when its standard input is closed, also because the demo itself was killed.
    """

    def __init__(self) -> None:
        self._running: dict[str, tuple[subprocess.Popen[str], ProcessOptions]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            for name in list(self._running):
                self.kill(name)
        self.stop()

    def start(self, role: Role, options: ProcessOptions) -> int:
        """Start a process, and return its id."""
        with options.errors.open("w") as errors:
            process = subprocess.Popen(  # noqa: S603  (a fixed command)
                [sys.executable, "-m", f"pellucid_commands.demo.durable.{role}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C is for the demo
            )
        self._running[options.process] = process, options
        self.send(options.process, options.dump())
        return process.pid

    def send(self, name: str, line: str) -> None:
        """Send a line to a process.

        Raises:
            DemoFailed: the process has ended.
        """
        process, _ = self._running[name]
        assert process.stdin is not None
        try:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        except OSError:
            process.wait(GRACE)
            self.check()

    def kill(self, name: str) -> int:
        """Kill a process with SIGKILL, on Windows with TerminateProcess, and return its exit code."""
        process, _ = self._running.pop(name)
        process.kill()
        code = process.wait()
        _close(process)
        return code

    def check(self) -> None:
        """Check that all processes run.

        Raises:
            DemoFailed: one has ended.
        """
        for name, (process, options) in self._running.items():
            if process.poll() is not None:
                errors = options.errors.read_text().strip().splitlines()
                raise DemoFailed(f"{name} ended with exit code {process.returncode}: {errors[-1] if errors else ''}")

    def stop(self) -> None:
        """Let all processes write their telemetry, and end."""
        for process, _ in self._running.values():
            _close(process)
        for name, (process, _) in list(self._running.items()):
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self.kill(name)
        self._running.clear()


def _close(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.close()
    except OSError:  # the process has ended, and lines were not read
        return
