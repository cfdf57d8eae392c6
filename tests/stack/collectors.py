"""Collectors with the configurations of deploy/collector: each is a process with a loopback address of its own."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from stack.compose import PROGRAMS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER: Final = ROOT / "deploy" / "collector"
BASE: Final = "base"
EXAMPLES: Final = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != BASE)
PROGRAM: Final = PROGRAMS["otelcol-contrib"]


class Collector:
    """A Collector with `base.yaml` and an example.

    Attributes:
        address: Its loopback address.
        endpoint: Its base URL for OTLP over HTTP.

    Args:
        example: Name of the example.
        folder: Where its files are.
        changes: What a third file changes, such as times that are too long for a test.
        variables: Environment variables that the example names.
    """

    def __init__(
        self, example: str, folder: Path, *, changes: Mapping[str, Any] | None = None, **variables: str
    ) -> None:
        self.address = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}.{secrets.randbelow(250) + 2}"
        self.endpoint = f"http://{self.address}:4318"
        self._folder = folder / self.address
        self._folder.mkdir(parents=True)
        files = {name: (FOLDER / f"{name}.yaml").read_text() for name in (BASE, example)}
        if changes:
            files["changes"] = yaml.safe_dump(dict(changes))
        for name, text in files.items():
            (self._folder / f"{name}.yaml").write_text(text.replace("0.0.0.0", self.address))
        self._command = [str(PROGRAM), *(f"--config={name}.yaml" for name in files)]
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
    example: str, folder: Path, *, changes: Mapping[str, Any] | None = None, **variables: str
) -> Iterator[Collector]:
    """Run a Collector for the block."""
    running = Collector(example, folder, changes=changes, **variables)
    try:
        running.start()
        yield running
    finally:
        running.stop()


def validated(examples: list[str], variables: Mapping[str, str]) -> str:
    """Return what `validate` says against `base.yaml` with examples; nothing if it has no objection."""
    files = [f"--config={FOLDER / name}.yaml" for name in (BASE, *examples)]
    done = subprocess.run(
        [PROGRAM, "validate", *files],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
