"""The servers of docker-compose.yml as programs, built from their Go modules into a cache.

`python -m stack.servers` builds what is missing, and `python -m stack.servers loki` Loki, too; with `--built` it only
says whether anything is missing. The cache is `$XDG_CACHE_HOME/pellucid/stack`, usually below `~/.cache`, and can be
removed at any time.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from support.caches import cache

CACHE: Final = cache("stack")

COLLECTOR: Final = "0.150.0"
PROVIDERS: Final = "1.56.0"
"""The version of the collector's stable modules that belongs to `COLLECTOR`."""

CONTRIB: Final = "github.com/open-telemetry/opentelemetry-collector-contrib"

MANIFEST: Final = f"""
dist: {{name: otelcol-contrib, output_path: ., version: {COLLECTOR}}}
receivers:
  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver v{COLLECTOR}
processors:
  - gomod: go.opentelemetry.io/collector/processor/batchprocessor v{COLLECTOR}
  - gomod: go.opentelemetry.io/collector/processor/memorylimiterprocessor v{COLLECTOR}
  - gomod: {CONTRIB}/processor/redactionprocessor v{COLLECTOR}
  - gomod: {CONTRIB}/processor/tailsamplingprocessor v{COLLECTOR}
  - gomod: {CONTRIB}/processor/transformprocessor v{COLLECTOR}
exporters:
  - gomod: go.opentelemetry.io/collector/exporter/debugexporter v{COLLECTOR}
  - gomod: go.opentelemetry.io/collector/exporter/otlpexporter v{COLLECTOR}
  - gomod: go.opentelemetry.io/collector/exporter/otlphttpexporter v{COLLECTOR}
  - gomod: {CONTRIB}/exporter/loadbalancingexporter v{COLLECTOR}
extensions:
  - gomod: {CONTRIB}/extension/healthcheckextension v{COLLECTOR}
  # Go's proxy did not serve this module's 0.150.0 when this was written.
  - gomod: {CONTRIB}/extension/storage/filestorage v0.149.0
providers:
  - gomod: go.opentelemetry.io/collector/confmap/provider/envprovider v{PROVIDERS}
  - gomod: go.opentelemetry.io/collector/confmap/provider/fileprovider v{PROVIDERS}
"""
"""The components that our configurations name; the image of docker-compose.yml has these and 200 others."""


@dataclass(frozen=True, slots=True)
class Server:
    """A Go module with a server.

    Attributes:
        service: Its name in docker-compose.yml.
        release: The version that is built, as its image would be tagged.
        version: The version of the module.
        packages: What is built, by the name of the program.
        placeholders: Files that a release embeds and a module has not, such as pages made by Node.js.
        tags: Go's build tags.
        manifest: What the collector's builder makes it of; kept beside the program, which is built anew if it differs.
        published: Modules that it replaces by folders of its repository, which its own module has not; the published
            ones are taken.
    """

    service: str
    release: str
    module: str
    version: str
    packages: Mapping[str, str]
    placeholders: Mapping[str, str] = field(default_factory=dict)
    tags: str = ""
    manifest: str = ""
    published: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        """Folder of its programs, once they are built."""
        return CACHE / f"{self.service}-{self.release}"

    def program(self, name: str) -> Path:
        """Return the path of one of its programs."""
        return self.folder / name

    @property
    def is_built(self) -> bool:
        """True if all of its programs exist and were made of this manifest."""
        kept = self.folder / "manifest.yaml"
        is_same = not self.manifest or (kept.exists() and kept.read_text() == self.manifest)
        return is_same and all(self.program(name).exists() for name in self.packages)


SERVERS: Final = (
    Server(
        "otel-collector",
        COLLECTOR,
        "go.opentelemetry.io/collector/cmd/builder",
        f"v{COLLECTOR}",
        {"otelcol-contrib": "."},
        manifest=MANIFEST,
    ),
    Server(
        "jaeger",
        # The module has no versions of Jaeger 2: it is not named as Go demands, with /v2. Version 1.76 has the server
        # of both, and is the last of 1.
        "2.13.0",
        "github.com/jaegertracing/jaeger",
        "v1.76.0",
        {"jaeger": "./cmd/jaeger"},
    ),
    Server(
        "prometheus",
        "3.13.3",
        "github.com/prometheus/prometheus",
        "v0.313.3",
        {"prometheus": "./cmd/prometheus", "promtool": "./cmd/promtool"},
        # Without discovery in clouds, whose clients take most of the time to build; files and static targets stay.
        tags="remove_all_sd",
    ),
    Server(
        "alertmanager",
        "0.33.1",
        "github.com/prometheus/alertmanager",
        "v0.33.1",
        {"alertmanager": "./cmd/alertmanager", "amtool": "./cmd/amtool"},
        {"ui/app/dist/index.html": "<!doctype html>"},
    ),
)
"""Services of others, except Loki, and Grafana, whose module Go's proxy does not serve."""

LOKI: Final = Server(
    "loki",
    "3.7.8",
    "github.com/grafana/loki/v3",
    "v3.7.8",
    {"loki": "./cmd/loki"},
    published=("github.com/grafana/loki/pkg/push",),
)
"""Server that takes longer to build than all others together, built only on demand."""


def missing() -> list[str]:
    """Return the services that are not built."""
    return [server.service for server in SERVERS if not server.is_built]


def build(server: Server) -> None:
    """Build the programs of a server.

    Raises:
        FileNotFoundError: Go is not installed.
        subprocess.CalledProcessError: Go failed; it has printed why.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        if server.manifest:
            _generate_collector(server, source)
        else:
            _copy_module(server, source)
        for module in server.published:
            _go("mod", "edit", f"-dropreplace={module}", cwd=source)
        for name, text in server.placeholders.items():
            file = source / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        for name, package in server.packages.items():
            sums = ["-mod=mod"] if server.published else []  # go.sum has none of them
            output = ("-o", f"{folder}/bin/{name}")
            _go("build", *sums, "-ldflags=-s -w", f"-tags={server.tags}", *output, package, cwd=source)
        server.folder.mkdir(parents=True, exist_ok=True)
        for name in server.packages:
            shutil.move(f"{folder}/bin/{name}", server.program(name))
        if server.manifest:
            (server.folder / "manifest.yaml").write_text(server.manifest)


def _remove_sources() -> None:
    """Remove Go's modules and objects, ten times as large as what was built of them."""
    if (CACHE / "go").exists():
        _go("clean", "-modcache", cwd=CACHE)
    for name in ("go", "objects"):
        shutil.rmtree(CACHE / name, ignore_errors=True)


def _generate_collector(server: Server, source: Path) -> None:
    """Let the collector's own builder write the program."""
    _go("install", f"{server.module}@{server.version}", cwd=source.parent)
    source.mkdir()
    (source / "manifest.yaml").write_text(server.manifest)
    builder = CACHE / "go" / "bin" / "builder"
    subprocess.run(
        [builder, "--config=manifest.yaml", "--skip-compilation", "--skip-get-modules"],
        cwd=source,
        env=_environment(),
        check=True,
        stdout=sys.stderr,
    )
    # The builder would tidy, for which Go gets what the tests of all modules need, too.
    _go("list", "-mod=mod", "-deps", ".", cwd=source)


def _copy_module(server: Server, source: Path) -> None:
    """Copy a module out of Go's cache, which is read-only."""
    found = json.loads(_go("mod", "download", "-json", f"{server.module}@{server.version}", cwd=source.parent))
    shutil.copytree(found["Dir"], source)
    for path in (source, *source.rglob("*")):
        path.chmod(path.stat().st_mode | 0o200)


def _go(*arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        ["go", *arguments], cwd=cwd, env=_environment(), check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def _environment() -> dict[str, str]:
    """Return variables for Go: everything in the cache, no C, and no workspace, which some modules contain."""
    folders = {"GOPATH": str(CACHE / "go"), "GOCACHE": str(CACHE / "objects"), "GOBIN": str(CACHE / "go" / "bin")}
    return {**os.environ, **folders, "CGO_ENABLED": "0", "GOWORK": "off", "GOTOOLCHAIN": "local"}


def main(*arguments: str) -> int:
    """Build what is missing, and print how long it took and how much memory.

    Args:
        arguments: `--built` to print only what is missing; `loki` to build it, too.
    """
    if arguments == ("--built",):
        if missing():
            print(f"The stack is not tried here: not built are {', '.join(missing())}; `make test-stack` builds them.")
        return 1 if missing() else 0
    servers = [*SERVERS, LOKI] if arguments == (LOKI.service,) else SERVERS
    if shutil.which("go") is None and not all(server.is_built for server in servers):
        print("building the servers of the stack: the program 'go' is not installed: https://go.dev/doc/install")
        return 1
    for server in servers:
        if server.is_built:
            print(f"{server.service} {server.release}: built before")
            continue
        print(f"{server.service} {server.release}: building {server.module} {server.version} ...", flush=True)
        started = time.monotonic()
        build(server)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        size = sum(server.program(name).stat().st_size for name in server.packages) / 1e6
        print(f"    {time.monotonic() - started:.0f} s, {size:.0f} MB; the largest process until now: {peak:.0f} MiB")
    _remove_sources()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
