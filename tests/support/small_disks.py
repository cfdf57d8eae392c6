"""A small disk, which fills."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

needs_root: Final = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root may mount a small disk"
)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a file system of a size, such as `64k`, until the end of the block; the test is skipped if it may not."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)
