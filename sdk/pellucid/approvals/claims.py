"""Claims, which prevent a checkpoint from being resumed twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Protocol

import anyio.to_thread

from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.errors import AlreadyResumed

MAX_CLAIMS: Final = 100_000
"""Claimed checkpoints that a process keeps in memory."""


class Claims(Protocol):
    """Store of claimed checkpoints; each checkpoint can be claimed once."""

    async def claim(self, checkpoint_id: str) -> bool:
        """Claim a checkpoint permanently and atomically; return whether it was unclaimed."""
        ...


class MemoryClaims:
    """Claims within this process; the latest 100,000 are kept."""

    def __init__(self) -> None:
        self._claimed: BoundedMap[str, object] = BoundedMap(MAX_CLAIMS, by_use=False)

    async def claim(self, checkpoint_id: str) -> bool:
        """Claim a checkpoint; return whether it was unclaimed."""
        claim = object()
        return self._claimed.setdefault(checkpoint_id, claim) is claim


class FileClaims:
    """Claims among all processes that share a directory.

    Each claim is an empty file, which only one process can create. A file may be removed once its checkpoint no longer
    exists.

    Raises:
        OSError: the directory cannot be created.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)

    async def claim(self, checkpoint_id: str) -> bool:
        """Claim a checkpoint; return whether it was unclaimed.

        Raises:
            OSError: the directory is not writable.
        """
        return await anyio.to_thread.run_sync(self._claim, checkpoint_id)

    def _claim(self, checkpoint_id: str) -> bool:
        try:
            os.close(os.open(self._directory / checkpoint_id, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            return False
        return True


_process_claims = MemoryClaims()


async def claim(claims: Claims | None, checkpoint_id: str) -> None:
    """Claim a checkpoint, in this process and among those that share `claims`.

    Raises:
        AlreadyResumed: it was claimed before.
    """
    for store in (claims, _process_claims):
        if store is not None and not await store.claim(checkpoint_id):
            raise AlreadyResumed(checkpoint_id)
