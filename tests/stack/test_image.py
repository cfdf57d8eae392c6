"""The Dockerfile without a container engine: its steps, in a clean Debian with Python 3.13, as root in a `chroot`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import yaml

from stack.compose import ROOT, SERVICES
from stack.servers import CACHE
from support.docker_build import is_ignored

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.integration, pytest.mark.stack]

DEBIAN: Final = CACHE / "debian-trixie"
MIRROR: Final = "http://deb.debian.org/debian"
PACKAGES: Final = "python3,python3-pip,ca-certificates"
MOUNTS: Final = ("proc", "dev")
ENVIRONMENT: Final = {
    **{name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")},
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
}
OF_THIS_MACHINE: Final = ("etc/resolv.conf", "etc/hosts", "etc/ssl/certs/ca-certificates.crt")
"""Files by which this machine reaches others, which a container engine would provide."""


class Image:
    """A root folder in which the steps of a Dockerfile were taken. Attributes: user: whom it runs as."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.user = "root"
        self.folder = "/"
        self.entrypoint: list[str] = []
        self.stages: list[str] = []
        self.relay_has_git = True
        self.relay_user = "root"
        self.relay_says = ""

    def build(self, dockerfile: Path) -> None:
        """Take the steps of a file, those of all stages in one root: each goes on from what the one before has."""
        text = re.sub(r"^#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
        for line in filter(None, text.splitlines()):
            step, _, rest = line.partition(" ")
            match step:
                case "FROM":
                    self._begin(*rest.split(" AS "))
                case "RUN":
                    self.run("sh", "-c", rest)
                case "COPY" if rest.startswith("--from=build /wheels /wheels"):
                    pass  # there is one root for all stages
                case "COPY":
                    self._copy(*shlex.split(rest))
                case "USER":
                    self.user = rest
                case "WORKDIR":
                    self.folder = rest
                case "ENTRYPOINT":
                    self.entrypoint = yaml.safe_load(rest)
                case _:
                    pytest.fail(f"the Dockerfile has a step that is not tried: {line}")

    def _begin(self, image: str, stage: str) -> None:
        """Begin a stage; after `relay` say what it lacks."""
        if image == "relay":
            self.relay_has_git = (self.root / "usr/bin/git").exists()
            self.relay_user = self.user
            self.relay_says = self.run(*self.entrypoint, "runbook", "ToolHubSlow")
        self.stages.append(stage)
        self.user = "root"

    def run(self, *command: str, folder: str | None = None, timeout: float = 900) -> str:
        """Run a command in the root folder; it must succeed."""
        inside = f"cd {shlex.quote(folder or self.folder)} && exec {shlex.join(command)}"
        entered = shlex.join(["chroot", f"--userspec={self._ids()}", str(self.root), "sh", "-c", inside])
        mounts = " && ".join(f"mount --bind /{name} {shlex.quote(str(self.root / name))}" for name in MOUNTS)
        done = subprocess.run(
            # The mounts end with the process, however it ends.
            ["unshare", "--mount", "--propagation=private", "sh", "-c", f"{mounts} && exec {entered}"],
            env={**ENVIRONMENT, "HOME": f"/home/{self.user}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}"
        return done.stdout

    def _ids(self) -> str:
        lines = (self.root / "etc/passwd").read_text().splitlines()
        [fields] = [line.split(":") for line in lines if line.startswith(f"{self.user}:")]
        return f"{fields[2]}:{fields[3]}"

    def _copy(self, *paths: str) -> None:
        *sources, target = paths
        for source in sources:
            assert not is_ignored(source), f"{source} is in .dockerignore"
            inside = self.root / target.strip("/")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, inside, ignore=_ignored)
            else:
                inside = inside / Path(source).name if target.endswith("/") else inside
                inside.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, inside)


def _ignored(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if is_ignored(str(Path(folder, name).relative_to(ROOT)))}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """Build the image of docker-compose.yml from its Dockerfile."""
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("needs root, and the program debootstrap (Debian: apt-get install debootstrap)")
    if not DEBIAN.exists():
        made = DEBIAN.with_suffix(".part")
        shutil.rmtree(made, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "trixie", str(made), MIRROR]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        made.rename(DEBIAN)
    root = tmp_path_factory.mktemp("image") / "root"
    try:
        subprocess.run(["cp", "-a", "--reflink=auto", DEBIAN, root], check=True)
        for file in OF_THIS_MACHINE:
            shutil.copy(f"/{file}", root / file)
        # As in the image of Python that the Dockerfile starts from.
        for name, target in {"python": "python3", "pip": "pip3"}.items():
            (root / "usr/local/bin" / name).symlink_to(f"/usr/bin/{target}")
        for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
            marker.unlink()
        found = Image(root)
        found.build(ROOT / "Dockerfile")
        yield found
    finally:
        shutil.rmtree(root, ignore_errors=True)  # hundreds of megabytes


def test_it_is_the_python_of_the_image(image: Image) -> None:
    """The Python in the image has the minor version that the Dockerfile names."""
    [version] = re.findall(r"^FROM python:(\d+\.\d+)-", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert image.run("python", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip() == version


def test_the_relay_has_no_git(image: Image) -> None:
    """The stage of the relay serves runbooks as a user without rights, and git comes with the demo only."""
    assert image.stages == ["build", "relay", "demo"]
    assert (image.relay_has_git, image.relay_user) == (False, "pellucid")
    assert "ToolHubSlow" in image.relay_says


def test_the_commands_of_its_services_are_there(image: Image) -> None:
    """The commands of the relay and the demo in docker-compose.yml are in the image, for a user without rights."""
    assert image.user != "root"
    for name in ("relay", "demo"):
        words = [word for word in SERVICES[name]["command"] if not word.startswith("--")]
        text = image.run(*image.entrypoint, *words, "--help")
        for option in (word.split("=")[0] for word in SERVICES[name]["command"] if word.startswith("--")):
            assert option in text


def test_the_demo_runs_in_it(image: Image) -> None:
    """The demo runs in the image, with real MCP servers, and prints a tree."""
    text = image.run(*image.entrypoint, "demo", "--no-color")
    assert "discover_tools catalogue" in text


def test_runbooks_and_rules_are_in_it(image: Image) -> None:
    """Runbooks that the relay serves are installed with the package."""
    assert "ToolHubSlow" in image.run(*image.entrypoint, "runbook", "ToolHubSlow")
