"""Files of an export."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from pellucid.errors import ConfigError
from pellucid_exporters.local.database import PRIVATE_FILE
from pellucid_exporters.plain_json import plain_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def json_line(line: Mapping[str, Any]) -> bytes:
    """Return a line as JSON, with its newline."""
    return plain_json(line) + b"\n"


def write_lines(lines: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write JSON Lines to a file for its owner only.

    Raises:
        ConfigError: it cannot be written to.
    """
    try:
        with private(path) as file:
            file.writelines(json_line(line) for line in lines)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written to ({error.strerror})") from error


def private(path: Path) -> IO[bytes]:
    """Open a file that is written anew, for its owner only, even if it was there.

    Raises:
        OSError: that is impossible.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    with suppress(OSError):  # another owner's, who lets this process write to it
        path.chmod(PRIVATE_FILE)
    return os.fdopen(descriptor, "wb")
