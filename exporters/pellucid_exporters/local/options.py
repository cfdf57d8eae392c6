"""Options of the local store."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from typing import Final

from pellucid.errors import ConfigError

DEFAULT_PATH: Final = ".pellucid/telemetry.db"
SMALLEST: Final = 1024 * 1024
"""Bytes of the smallest allowed limit."""


@dataclass(frozen=True, slots=True)
class Local:
    """Options of the local store: path and retention.

    Attributes:
        path: The file. It and its folder are created if they do not exist, readable by their owner only.
        max_age: Seconds for which telemetry is kept.
        max_bytes: Size of the content; if there is more, the oldest runs are deleted.
    """

    path: str | os.PathLike[str] = DEFAULT_PATH
    _: KW_ONLY
    max_age: float = 14 * 86_400
    max_bytes: int = 2 * 1024**3

    def __post_init__(self) -> None:
        path = os.fspath(self.path)
        if not path or "\0" in path or path == ":memory:":
            raise ConfigError(f"Local({path!r}): that is not a path of a file")
        if not self.max_age > 0:
            raise ConfigError(f"Local(max_age={self.max_age}): must be more than 0 seconds")
        if self.max_bytes < SMALLEST:
            raise ConfigError(f"Local(max_bytes={self.max_bytes}): must be at least {SMALLEST:,} bytes")
        object.__setattr__(self, "path", path)  # equivalent options are equal, which makes configure() idempotent
