"""Build and try what would be published: `make package`.

It writes `dist/`: sdist, wheel, and a bill of materials of the smallest and of the largest installation.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from distribution import dependencies
from distribution.environments import CONSTRAINTS, ROOT, Environment, run

DIST: Final = ROOT / "dist"
TESTS: Final = "tests/conventions tests/dashboards tests/type_checks tests/test_*.py -m 'not browser' --numprocesses=2"
"""Tests that are run in the unpacked sdist: all kinds of files are read by one of them."""

GRPC: Final = ("grpcio", "opentelemetry-exporter-otlp-proto-grpc")
"""Packages that `docs/installation.md` removes from an image that exports over HTTP."""

OVER_HTTP: Final = """
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from pellucid import Agent
from pellucid.testing import ScriptedModel
from pellucid_exporters import configure

received = set()

class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        received.add(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *parts):
        pass

server = HTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=server.serve_forever, daemon=True).start()
telemetry = configure("a", otlp=f"http://127.0.0.1:{server.server_port}")
Agent("a", model=ScriptedModel("Hello.")).run_sync("Hi")
telemetry.shutdown()
assert received == {"/v1/traces", "/v1/metrics", "/v1/logs"}, received
"""

_MADE: Final = {"PKG-INFO"}
"""Files that the build adds to an sdist."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Build and check. Whatever is wrong ends the program, with the reason."""
    parser = argparse.ArgumentParser(description="Build and try what would be published.")
    parser.add_argument(
        "--quick", action="store_true", help="do not test and demonstrate the sdist in its own environment"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sdist, wheel = build(folder)
        source = unpacked(sdist, folder)
        bills = [try_bare(wheel, folder), try_all(wheel, folder)]
        if not options.quick:
            show("Tests and demo of the unpacked sdist")
            run("make", "test", f"ARGS={TESTS}", cwd=source)
            run("make", "demo", cwd=source)
    show("Built")
    for file in [sdist, wheel, *bills]:
        print(f"{file.stat().st_size / 1e6:6.1f} MB  {file.relative_to(ROOT)}")


def build(folder: Path) -> tuple[Path, Path]:
    """Build an sdist and from it the wheel, and check both. Return their paths."""
    show("Sdist and wheel")
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "tree")
    [sdist], [wheel], [of_tree] = DIST.glob("*.tar.gz"), DIST.glob("*.whl"), (folder / "tree").glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    run(Path(sys.executable).with_name("check-wheel-contents"), wheel)
    require_same("a wheel of the sdist", contents(wheel), "one of the tree", contents(of_tree))
    return sdist, wheel


def contents(wheel: Path) -> dict[str, int]:
    """Return the files of a wheel with their checksums."""
    with zipfile.ZipFile(wheel) as archive:
        return {file.filename: file.CRC for file in archive.infolist()}


def unpacked(sdist: Path, folder: Path) -> Path:
    """Unpack an sdist, check that it has the files of the repository, and return its folder."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    source = folder / sdist.name.removesuffix(".tar.gz")
    packed = {str(path.relative_to(source)): 0 for path in source.rglob("*") if path.is_file()}
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        tracked = dict.fromkeys(listed.rstrip("\0").split("\0"), 0)
        require_same("the sdist", packed, "the repository", {**tracked, **dict.fromkeys(_MADE, 0)})
    return source


def require_same(one: str, files: dict[str, int], other: str, others: dict[str, int]) -> None:
    """Exit if two sets of files differ.

    Raises:
        SystemExit: they do; the message names the files.
    """
    different = [name for name in sorted({*files, *others}) if files.get(name) != others.get(name)]
    if different:
        shown = "\n  ".join(f"{name}: {_where(name in files, one, name in others, other)}" for name in different)
        raise SystemExit(f"{one} differs from {other}:\n  {shown}")
    print(f"{one} has the {len(files)} files of {other}")


def _where(in_one: bool, one: str, in_other: bool, other: str) -> str:
    return "differs" if in_one and in_other else f"only in {one if in_one else other}"


def try_bare(wheel: Path, folder: Path) -> Path:
    """Install the wheel without extras, measure and use it. Return the path of its bill of materials."""
    show("Bare installation, with the newest dependencies")
    environment = Environment(folder / "bare")
    start = time.perf_counter()
    environment.install(str(wheel))
    took = time.perf_counter() - start
    sizes = environment.sizes()
    for size in sizes[:6]:
        print(f"{size.installed / 1e6:6.1f} MB  {size.name}")
    rest = sizes[6:]
    print(f"{sum(size.installed for size in rest) / 1e6:6.1f} MB  {len(rest)} others")
    whole, compiled = (sum(getattr(size, part) for size in sizes) / 1e6 for part in ("installed", "compiled"))
    print(f"{len(sizes)} distributions, {whole:.1f} MB, and {compiled:.1f} MB of bytecode; installed in {took:.1f} s")
    run(
        environment.python,
        "-W",
        "error",
        "-c",
        "import pellucid, pellucid_exporters as e; e.configure('a').shutdown()",
        cwd=folder,
    )
    said = subprocess.run(
        [environment.folder / "bin" / "pellucid", "demo"], capture_output=True, text=True, check=False
    )
    if said.returncode != 2 or "pip install 'pellucid[demo]'" not in said.stderr:
        raise SystemExit(
            f"pellucid demo without its extra: exit code {said.returncode}, not 2 and the remedy\n{said.stderr}"
        )
    file = bill(environment, wheel, "bare")
    environment.uninstall(*GRPC)
    run(environment.python, "-c", OVER_HTTP, cwd=folder)
    left = environment.sizes()
    whole = sum(size.installed for size in left) / 1e6
    print(f"without gRPC {len(left)} distributions, {whole:.1f} MB; OTLP over HTTP works")
    return file


def try_all(wheel: Path, folder: Path) -> Path:
    """Install the wheel with all extras and run the demo. Return the path of its bill of materials."""
    show("Installation with all extras, and the versions of constraints.txt")
    environment = Environment(folder / "all")
    environment.install(*CONSTRAINTS, f"{wheel}[all]")
    run(environment.folder / "bin" / "pellucid", "demo", cwd=folder)
    licences = {name: dependencies.licence(name) for name in dependencies.required("pellucid", ["all"])}
    if refused := dependencies.refused(licences):
        raise SystemExit(f"licences that nobody has read: {refused}; see distribution/dependencies.py")
    dependencies.main()
    return bill(environment, wheel, "all")


def bill(environment: Environment, wheel: Path, name: str) -> Path:
    """Write a bill of materials of an environment (CycloneDX 1.6), which is validated, and return its path."""
    package, version = wheel.name.split("-")[:2]
    project = environment.folder / "pyproject.toml"  # with the version, which the tool cannot ask the build for
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project.write_text(text.replace('dynamic = ["version"]', f'version = "{version}"'), encoding="utf-8")
    file = DIST / f"{package}-{version}-{name}.cdx.json"
    command = (sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", project, "--mc-type", "library")
    run(*command, "--output-reproducible", "--validate", "--output-file", file, environment.python)
    written = file.read_text(encoding="utf-8")
    if "file:" in written or json.loads(written)["metadata"]["component"]["version"] != version:
        raise SystemExit(f"{file} has a path of this machine, or not the version {version}")
    return file


def show(heading: str) -> None:
    """Print a heading before what follows."""
    print(f"\n== {heading}", flush=True)


if __name__ == "__main__":
    main()
