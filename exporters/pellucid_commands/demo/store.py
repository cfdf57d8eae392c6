"""Local store of the demo, and the command that shows it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from pellucid_commands.view.command import NEEDED
from pellucid_exporters.local.options import DEFAULT_PATH


def writable_store() -> Path | None:
    """Return the path of the project's store, or None if it cannot be written, as in a read-only container."""
    path = Path(DEFAULT_PATH)
    try:
        path.parent.mkdir(exist_ok=True)
    except OSError:
        return None
    return path if os.access(path if path.exists() else path.parent, os.W_OK) else None


def view_command(store: Path) -> str:
    """Return the line that opens the page, as this process was started."""
    program = ["pellucid"]
    if not shutil.which("pellucid"):
        program = [sys.argv[0]] if Path(sys.argv[0]).name == "pellucid" else [sys.executable, "-m", "pellucid"]
    command = shlex.join([*program, "view", str(store)])
    if all(find_spec(name) is not None for name in NEEDED):
        return command
    return f"pip install 'pellucid[view]' && {command}"
