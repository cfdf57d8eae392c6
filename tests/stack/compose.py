"""docker-compose.yml without containers: each service is a process with a loopback address of its own.

Commands, mounted files and health checks are those of the file, but for names of hosts, which become loopback
addresses, and paths in containers, which become folders. So each service has all ports that it has in a container.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from stack.servers import LOKI, SERVERS

ROOT: Final = Path(__file__).parent.parent.parent
SERVICES: Final[Mapping[str, Mapping[str, Any]]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
PROGRAMS: Final = {
    **{name: server.program(name) for server in SERVERS for name in server.packages},
    "loki": LOKI.program("loki") if LOKI.is_built else Path(__file__).with_name("loki.py"),
}
ENTRYPOINTS: Final = {
    "otel-collector": PROGRAMS["otelcol-contrib"],
    "jaeger": PROGRAMS["jaeger"],
    "prometheus": PROGRAMS["prometheus"],
    "loki": PROGRAMS["loki"],
    "alertmanager": PROGRAMS["alertmanager"],
    "relay": Path(sys.executable).with_name("pellucid"),
    "demo": Path(sys.executable).with_name("pellucid"),
}
STARTED: Final = ("jaeger", "prometheus", "loki", "otel-collector", "alertmanager", "relay")
"""Services in the order in which they are healthy."""
LISTENS_EVERYWHERE: Final = {
    "prometheus": "--web.listen-address={address}:9090",
    "alertmanager": "--web.listen-address={address}:9093",
}
"""Options for servers that listen on all addresses unless told otherwise, which several cannot on one machine."""


def started_by(program: Path) -> list[str]:
    """Return the beginning of a command: a script needs the interpreter that has the test's packages."""
    return [sys.executable, str(program)] if program.suffix == ".py" else [str(program)]


class Service:
    """A service of docker-compose.yml.

    Attributes:
        address: Its loopback address.
        log: The file with its output.
    """

    def __init__(self, name: str, addresses: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.address = addresses[name]
        self.log = folder / f"{name}.log"
        self._addresses = addresses
        self._definition = SERVICES[name]
        self._mounts = {
            inside: ROOT if source == "." else folder / name / inside.strip("/").replace("/", "-")
            for source, inside, *_ in (volume.split(":") for volume in self._definition.get("volumes", []))
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.started_in = 0.0
        self._copy_files()

    @property
    def pid(self) -> int:
        """Id of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def memory(self) -> float:
        """The largest memory of its process until now, in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1024

    def url(self, path: str = "", port: int | None = None) -> str:
        """Return a URL of a port; of the first that is published, unless one is named."""
        first = int(self._definition["ports"][0].split(":")[1]) if port is None else port
        return f"http://{self.address}:{first}{path}"

    def start(self, timeout: float = 120.0) -> None:
        """Start it and wait until its health check succeeds."""
        started = time.monotonic()
        command = [*started_by(ENTRYPOINTS[self.name]), *map(self.translate, self._definition["command"])]
        if self.name in LISTENS_EVERYWHERE:
            command.append(LISTENS_EVERYWHERE[self.name].format(address=self.address))
        environment = {name: self.translate(value) for name, value in self._definition.get("environment", {}).items()}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._folder(), env={**os.environ, **environment}
            )
        while not self.is_healthy():
            if self._process.poll() is not None or time.monotonic() > started + timeout:
                pytest.fail(f"{self.name} did not start: {command}\n{self.log.read_text()[-4000:]}")
            time.sleep(0.1)
        self.started_in = time.monotonic() - started

    def is_healthy(self) -> bool:
        """Return whether the health check of docker-compose.yml succeeds."""
        program, *arguments = map(self.translate, self._definition["healthcheck"]["test"][1:])
        if program.endswith("wget"):
            try:
                with urlopen(arguments[-1], timeout=5) as answer:
                    return bool(answer.status == 200)
            except (URLError, OSError):
                return False
        started = [sys.executable] if program == "python" else started_by(PROGRAMS[program])
        return subprocess.run([*started, *arguments], capture_output=True, check=False, timeout=60).returncode == 0

    def stop(self, *, kill: bool = False) -> int:
        """End it as `docker compose stop` does, or at once; return its exit status."""
        assert self._process is not None
        if kill:
            self._process.kill()
        else:
            self._process.terminate()
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            pytest.fail(f"{self.name} did not end by SIGTERM within 60 s:\n{self.log.read_text()[-4000:]}")

    @contextmanager
    def up(self) -> Iterator[None]:
        """Run it for the block; it ends also if it does not become healthy."""
        try:
            self.start()
            yield
        finally:
            if self.is_running:
                self.stop()

    @contextmanager
    def down(self, *, kill: bool = False) -> Iterator[None]:
        """End it for the block, and start it again."""
        status = self.stop(kill=kill)
        try:
            assert kill or status in (0, -signal.SIGTERM), f"{self.name} ended with {status}"
            yield
        finally:
            self.start()

    @property
    def is_running(self) -> bool:
        """True if its process runs."""
        return self._process is not None and self._process.poll() is None

    def translate(self, text: str) -> str:
        """Return a text of the composition with loopback addresses and folders of this machine."""
        text = re.sub(r"\b(localhost|127\.0\.0\.1):(\d+)", self._published, text)
        text = re.sub(rf"\b({'|'.join(self._addresses)}):(?=\d)", lambda found: f"{self._addresses[found[1]]}:", text)
        text = text.replace("0.0.0.0", self.address).replace("host.docker.internal", "127.0.0.1")
        if not self._mounts:
            return text
        inside = "|".join(map(re.escape, sorted(self._mounts, key=len, reverse=True)))
        return re.sub(rf"(?<![\w./-])({inside})(?![\w-])", lambda found: str(self._mounts[found[1]]), text)

    def mounted(self, inside: str) -> Path:
        """Return the folder for a folder in the container."""
        return self._mounts[inside]

    def _published(self, found: re.Match[str]) -> str:
        """Return the address of the service that publishes a port; in a health check it is that of the service."""
        owner = self.name
        for name in self._addresses:
            if found[1] == "localhost" and any(
                port.split(":")[1] == found[2] for port in SERVICES[name].get("ports", [])
            ):
                owner = name
        return f"{self._addresses[owner]}:{found[2]}"

    def _copy_files(self) -> None:
        """Copy the files that are mounted, translated, and make the volumes."""
        for volume in self._definition.get("volumes", []):
            source, inside, *_ = volume.split(":")
            target = self._mounts[inside]
            if target == ROOT:
                continue
            target.mkdir(parents=True)
            if source.startswith("."):
                files = [file for file in (ROOT / source).rglob("*") if file.is_file()]
                for file in files:
                    copy = target / file.relative_to(ROOT / source)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_text(self.translate(file.read_text()))

    def _folder(self) -> Path:
        working: str | None = self._definition.get("working_dir")
        return self._mounts[working] if working else self.log.parent


@dataclass(frozen=True, slots=True)
class Stack:
    """All services that are started.

    Attributes:
        services: By their names, in the order in which they were started.
        addresses: Loopback addresses of all services, by their names.
        folder: Where their files are.
    """

    services: Mapping[str, Service]
    addresses: Mapping[str, str]
    folder: Path

    def __getitem__(self, name: str) -> Service:
        """Return a service."""
        return self.services[name]


@contextmanager
def stack(folder: Path, names: Sequence[str] = STARTED) -> Iterator[Stack]:
    """Run services until the end of the block, each started when those that it depends on are healthy."""
    network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
    addresses = {name: f"{network}.{place}" for place, name in enumerate(SERVICES, start=1)}
    addresses["demo"] = "127.0.0.1"  # it serves its metrics there only
    services = {name: Service(name, addresses, folder) for name in names}
    with ExitStack() as running:
        for service in services.values():
            running.enter_context(service.up())
        yield Stack(services, addresses, folder)
