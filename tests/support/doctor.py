"""Running `pellucid doctor` as the command line does."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pellucid_commands.doctor.command import COMMAND

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Report:
    """Report of the doctor. Attributes: code: the exit code; text: all of its output."""

    code: int
    text: str

    def about(self, subject: str, level: str = "") -> list[str]:
        """Return the lines about a subject, of one level or of all."""
        found = [line for line in self.text.splitlines() if line[7:].startswith(subject)]
        return [line for line in found if line.startswith(level)]


class Doctor:
    """Runs the command in an environment of the test's."""

    def __init__(self, environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._environment = environment
        self._capsys = capsys
        for name in list(os.environ):
            if name.startswith(("OTEL_", "PELLUCID_CAPTURE", "PROMETHEUS_")):
                environment.delenv(name)
        environment.setenv("GRPC_VERBOSITY", "NONE")

    def __call__(self, *arguments: str, timeout: float = 20.0, variables: Sequence[tuple[str, str]] = ()) -> Report:
        """Run it with arguments and variables."""
        for name, value in variables:
            self._environment.setenv(name, value)
        parser = ArgumentParser()
        COMMAND.add_arguments(parser)
        with pytest.MonkeyPatch.context() as during:
            during.delenv("PELLUCID_REQUIRE_SERVICES", raising=False)  # of the tests, not of the product
            code = COMMAND.run(parser.parse_args([f"--timeout={timeout}", *arguments]))
        return Report(code, "".join(self._capsys.readouterr()))


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """Return the command, in an environment that says nothing of telemetry."""
    return Doctor(monkeypatch, capsys)
