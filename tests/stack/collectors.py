"""Collectors with our configurations: each is a process with a loopback address of its own."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from stack.compose import PROGRAMS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

FOLDER: Final = ROOT / "deploy" / "collector"
BASE: Final = FOLDER / "base.yaml"
EXAMPLES: Final = sorted(path.stem for path in FOLDER.glob("*.yaml") if path != BASE)
PROGRAM: Final = PROGRAMS["otelcol-contrib"]


def example(name: str) -> list[Path]:
    """Return the files of an example."""
    return [BASE, FOLDER / f"{name}.yaml"]


class Collector:
    """A Collector.

    Attributes:
        address: Its loopback address.
        endpoint: Its base URL for OTLP over HTTP.

    Args:
        files: Its configuration, whose addresses 0.0.0.0 become its own.
        folder: Where the copies are.
        hosts: What is put in place of names of hosts.
        variables: Environment variables that the configuration names.
    """

    def __init__(
        self, files: Sequence[Path], folder: Path, *, hosts: Mapping[str, str] | None = None, **variables: str
    ) -> None:
        self.address = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}.{secrets.randbelow(250) + 2}"
        self.endpoint = f"http://{self.address}:4318"
        self._folder = folder / self.address
        self._folder.mkdir(parents=True)
        for file in files:
            text = file.read_text()
            for host, instead in {"0.0.0.0": self.address, **(hosts or {})}.items():
                text = text.replace(host, instead)
            (self._folder / file.name).write_text(text)
        self._command = [str(PROGRAM), *(f"--config={file.name}" for file in files)]
        self._variables = variables
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it is healthy."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=self._folder, env={**os.environ, **self._variables}
            )
        deadline = time.monotonic() + 60
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"{self._command} did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.1)  # between two looks at another process

    def kill(self) -> None:
        """End it at once, with all that it has in memory."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it as container engines do, unless it has ended."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(60)

    def count(self, metric: str) -> int:
        """Return the sum over all series of one of its own metrics."""
        with urlopen(f"http://{self.address}:8888/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return int(sum(float(value) for value in re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", text, re.MULTILINE)))

    @property
    def _log(self) -> Path:
        return self._folder / "collector.log"

    def _is_healthy(self) -> bool:
        try:
            with urlopen(f"http://{self.address}:13133/", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False


@contextmanager
def collector(
    files: Sequence[Path], folder: Path, *, hosts: Mapping[str, str] | None = None, **variables: str
) -> Iterator[Collector]:
    """Run a Collector for the block."""
    running = Collector(files, folder, hosts=hosts, **variables)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def validated(files: Sequence[Path], variables: Mapping[str, str]) -> str:
    """Return what `validate` says against a configuration; nothing if it has no objection."""
    done = subprocess.run(
        [PROGRAM, "validate", *(f"--config={file}" for file in files)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
