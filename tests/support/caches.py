"""Folders of the user's cache, for what takes long to make."""

from __future__ import annotations

import os
from pathlib import Path


def cache(name: str) -> Path:
    """Return the folder of this name in `$XDG_CACHE_HOME/pellucid`, usually below `~/.cache`; it need not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pellucid" / name
