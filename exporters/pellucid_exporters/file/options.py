"""Options of the file exporter."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass
from typing import Final, Literal, TypeAlias, get_args

from pellucid.errors import ConfigError

LineType: TypeAlias = Literal["span", "event", "boundary", "catalog"]

LINE_TYPES: Final[tuple[LineType, ...]] = get_args(LineType)


@dataclass(frozen=True, slots=True)
class File:
    """Options of the JSON Lines file: path and rotation.

    Attributes:
        path: The file. It is created if it does not exist; its folder must exist.
        max_bytes: A file that would exceed this size is rotated; `None` is no limit.
        max_age: Seconds. Lines of one file are from the same stretch of this length, counted from 1970: 86,400 is a
            file for each day, in UTC. `None` is no limit.
        keep: Number of rotated files to keep; older ones are deleted. `None` keeps all.
        types: Types of lines to write.
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
    max_bytes: int | None = 100 * 1024 * 1024
    max_age: float | None = None
    keep: int | None = 10
    types: Collection[LineType] = LINE_TYPES

    def __post_init__(self) -> None:
        path = os.fspath(self.path)
        if not path or "\0" in path:
            raise ConfigError(f"File({path!r}): that is not a path of a file")
        for name in ("max_bytes", "max_age", "keep"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"File({name}={value}): must be more than 0, or None for no limit")
        chosen = (self.types,) if isinstance(self.types, str) else tuple(self.types)
        if not chosen or not set(chosen) <= set(LINE_TYPES):
            raise ConfigError(f"File(types={self.types!r}): use some of {', '.join(LINE_TYPES)}")
        # Equivalent options are equal, which makes configure() idempotent.
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "types", tuple(name for name in LINE_TYPES if name in chosen))
