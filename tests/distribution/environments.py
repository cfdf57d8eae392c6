"""Virtual environments in which a distribution is tried: what it brings, and how large that is."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).parents[2]
CONSTRAINTS: Final = ("--constraint", str(ROOT / "constraints.txt"))
_OF_THIS_ONE: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True, slots=True)
class Size:
    """Size of an installed distribution.

    Attributes:
        name: Its name.
        installed: Bytes of the files that were in its wheel.
        compiled: Bytes of the bytecode that the installer made of them.
    """

    name: str
    installed: int
    compiled: int


class Environment:
    """A new virtual environment without pip, so that it holds what is installed into it and nothing else.

    Attributes:
        folder: Its folder, which is made.
        python: Its interpreter.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False)
        self.folder = folder
        self.python = folder / "bin" / "python"

    def install(self, *arguments: str) -> None:
        """Install with the pip of this process.

        Raises:
            subprocess.CalledProcessError: pip could not; it has said why.
        """
        self._pip("install", "--quiet", *arguments)

    def uninstall(self, *names: str) -> None:
        """Remove packages, also if others require them.

        Raises:
            subprocess.CalledProcessError: pip could not; it has said why.
        """
        self._pip("uninstall", "--quiet", "--yes", *names)

    def _pip(self, *arguments: str) -> None:
        run(sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", *arguments)

    def distributions(self) -> list[Distribution]:
        """Return what is installed, by name."""
        [packages] = (self.folder / "lib").glob("python*/site-packages")
        return sorted(distributions(path=[str(packages)]), key=lambda found: found.name.lower())

    def sizes(self) -> list[Size]:
        """Return the size of each distribution, the largest one first."""
        return sorted(map(_size, self.distributions()), key=lambda size: -size.installed)


def _size(distribution: Distribution) -> Size:
    sizes = {True: 0, False: 0}
    for file in distribution.files or ():
        sizes[file.suffix == ".pyc"] += Path(str(file.locate())).stat().st_size
    return Size(distribution.name, installed=sizes[False], compiled=sizes[True])


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> None:
    """Run a program as from a shell in which no environment is active; its output is shown.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _OF_THIS_ONE}
    subprocess.run(command, check=True, cwd=cwd, env={**environment, **(env or {})})
