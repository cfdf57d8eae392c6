"""Files that a container engine sends to a build."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent


def is_ignored(path: str) -> bool:
    """Return whether `.dockerignore` keeps a path out of the build: the last pattern that matches decides."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().split():
        pattern = line.removeprefix("!")
        names = [Path(path).name] if pattern.startswith("**/") else [path, *map(str, Path(path).parents)]
        if any(fnmatch(name, pattern.removeprefix("**/")) for name in names):
            ignored = not line.startswith("!")
    return ignored
