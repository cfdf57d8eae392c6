"""Claims: each checkpoint is resumed once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

import anyio.to_thread

from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.errors import AlreadyResumed

REMEMBERED: Final = 100_000
"""Checkpoints of which a process remembers that they were resumed."""


class Claims(Protocol):
    """Sees to it that a checkpoint is resumed once."""

    async def claim(self, checkpoint_id: str) -> bool:
        """Take a checkpoint, for ever; return whether it was free until now. It must be atomic."""
        ...


class MemoryClaims:
    """Claims within this process; it remembers the latest 100,000."""

    def __init__(self) -> None:
        self._taken: BoundedMap[str, object] = BoundedMap(REMEMBERED, by_use=False)

    async def claim(self, checkpoint_id: str) -> bool:
        """Take a checkpoint; return whether it was free."""
        claim = object()
        return self._taken.setdefault(checkpoint_id, claim) is claim


class FileClaims:
    """Claims among all processes that share a directory: an empty file for each, which only one of them can create.

    Old files may be removed once nobody has their checkpoints any longer.

    Raises:
        OSError: the directory cannot be made.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)

    async def claim(self, checkpoint_id: str) -> bool:
        """Take a checkpoint; return whether it was free.

        Raises:
            OSError: the directory cannot be written to.
        """
        return await anyio.to_thread.run_sync(self._claim, checkpoint_id)

    def _claim(self, checkpoint_id: str) -> bool:
        try:
            os.close(os.open(self._directory / checkpoint_id, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True


_here = MemoryClaims()


async def claim(claims: Claims | None, checkpoint_id: str) -> None:
    """Take a checkpoint, in this process and among those who share `claims`.

    Raises:
        AlreadyResumed: it was taken before.
    """
    for each in (claims, _here):
        if each is not None and not await each.claim(checkpoint_id):
            raise AlreadyResumed(checkpoint_id)
