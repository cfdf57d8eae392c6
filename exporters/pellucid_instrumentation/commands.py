"""Names of server commands: the program and its package, and never another argument, which may be a secret."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Final

_PACKAGE: Final = re.compile(r"(@[\w.-]+/)?[A-Za-z_][\w.-]*(==?[\w.]+|@[\w.]+)?")
_IMAGE: Final = re.compile(r"[a-z0-9][\w.-]*(:\d+)?(/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]+)?")
_VERSION: Final = re.compile(r"(?<=.)(==?|@)[\w.]+$")


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Options of a program that runs packages.

    Attributes:
        words: Words before the package, such as `run`, of which the last one is required.
        flags: Options without a value.
        valued: Options with a value, which is skipped.
        package: Options whose value is the package.
        pattern: Pattern of packages.
    """

    words: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    valued: tuple[str, ...] = ()
    package: tuple[str, ...] = ()
    pattern: re.Pattern[str] = _PACKAGE


_PYTHON: Final = _Launcher(
    flags=("-u", "-I", "-E", "-s", "-B", "-O", "-OO", "-P"), valued=("-X", "-W"), package=("-m",)
)
_UVX: Final = ("--isolated", "--no-cache", "--offline", "-q", "--quiet", "-n")
_NODE: Final = _Launcher(flags=("-y", "--yes", "-q", "--quiet", "--no-install"), package=("-p", "--package"))
_LAUNCHERS: Final = {
    "python": _PYTHON,
    "pypy": _PYTHON,
    "node": _Launcher(),
    "deno": _Launcher(words=("run",), flags=("-A", "--allow-all")),
    "uvx": _Launcher(flags=_UVX, valued=("--with", "--python", "-p"), package=("--from",)),
    "uv": _Launcher(
        words=("tool", "run"), flags=_UVX, valued=("--with", "--python", "-p", "--directory"), package=("--from",)
    ),
    "pipx": _Launcher(words=("run",), flags=("-q", "--quiet", "--no-cache"), package=("--spec",)),
    "npx": _NODE,
    "bunx": _NODE,
    "pnpm": _Launcher(words=("dlx",)),
    "docker": _Launcher(
        words=("run",),
        flags=("-i", "-t", "-it", "--rm", "--init", "--interactive"),
        valued=("-e", "--env", "--env-file", "-v", "--volume", "--name", "--network", "--mount", "-p", "--user"),
        pattern=_IMAGE,
    ),
}
_LAUNCHERS["podman"] = _LAUNCHERS["docker"]


def name_of(command: str, arguments: Sequence[str]) -> str:
    """Return the package that a command runs, else its program and script, else its program."""
    program = _base(command).removesuffix(".exe")
    launcher = _LAUNCHERS.get(re.sub(r"[\d.]+$", "", program))
    target = _target(launcher, arguments) if launcher is not None else None
    if target is None:
        return program
    if target.endswith((".py", ".js", ".mjs", ".cjs", ".ts")):
        return f"{program} {_base(target)}"
    return _VERSION.sub("", target)


def _target(launcher: _Launcher, arguments: Sequence[str]) -> str | None:
    """Return the package or script among arguments; None after an option or a word of unknown meaning."""
    remaining = list(arguments)
    words = list(launcher.words)
    while remaining:
        argument = remaining.pop(0)
        if argument in words:
            del words[: words.index(argument) + 1]
            continue
        if argument in launcher.flags:
            continue
        if argument in launcher.valued:
            del remaining[:1]
            continue
        if argument in launcher.package:
            argument = remaining[0] if remaining else ""
        elif words or argument.startswith("-"):
            return None
        base = _base(argument) if argument.endswith((".py", ".js", ".mjs", ".cjs", ".ts")) else argument
        return base if launcher.pattern.fullmatch(base) else None
    return None


def _base(path: str) -> str:
    return PureWindowsPath(path).name if "\\" in path else PurePosixPath(path).name
