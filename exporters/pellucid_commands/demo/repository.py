"""The repository that the demo asks about: the one around a folder, or a sample that needs no git."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pellucid.errors import ConfigError

SAMPLE: Final = Path("sample")
SAMPLE_SERVER: Final = Path(__file__).with_name("sample_history.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository, and the MCP server that reads it.

    Attributes:
        path: Name of the repository for the tools of the server.
        about: Description of the repository.
        server: Description of the server.
        command: Arguments that start the server with this Python.
    """

    path: Path
    about: str
    server: str
    command: Sequence[str]


def choose_repository(path: Path | None) -> Repository:
    """Return the repository around a path that the user named, or else around this folder, or else the sample.

    Raises:
        ConfigError: the path was named and has no work tree or no commit, or git is missing.
    """
    try:
        top = _find_repository(path or Path())
    except ConfigError as problem:
        if path is not None:
            raise ConfigError(f"--repository {path}: {problem}") from None
        return Repository(
            path=SAMPLE,
            about=f"a sample of invented commits, because {problem}; --repository PATH names another",
            server="an MCP server of this demo in place of mcp-server-git, a process of its own, over stdio",
            command=(str(SAMPLE_SERVER),),
        )
    return Repository(
        path=top,
        about=str(top),
        server="mcp-server-git, a process of its own, over stdio",
        command=("-m", "mcp_server_git", "--repository", str(top)),
    )


def _find_repository(path: Path) -> Path:
    """Return the top folder of the work tree around `path`.

    Raises:
        ConfigError: there is no work tree, it has no commit, or git is missing.
    """
    if not path.is_dir():
        raise ConfigError("this is not a folder; give the path of a git repository")
    top, problem = _git(path, "rev-parse", "--show-toplevel")
    if problem:
        raise ConfigError(f"{path.resolve()} is not a git repository ({problem})")
    if _git(path, "rev-parse", "--verify", "HEAD^{commit}")[1]:
        raise ConfigError(f"the git repository {top} has no commit to ask about")
    return Path(top)


def _git(path: Path, *arguments: str) -> tuple[str, str]:
    """Return the output and the error of a git command."""
    try:
        ran = subprocess.run(  # noqa: S603  (a fixed command)
            ["git", "-C", str(path), *arguments],  # noqa: S607  (whichever git the user has)
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        raise ConfigError("git is not installed or not on PATH") from None
    problem = ran.stderr.strip().partition("\n")[0] or f"git exit code {ran.returncode}"
    return ran.stdout.strip(), problem.removeprefix("fatal: ") if ran.returncode else ""
