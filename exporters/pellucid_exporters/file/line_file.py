"""A file to which several processes append whole lines, rotated by size or age.

Each batch opens the file, locks it, and makes sure that it still is the one at the path: so it does not matter who
renames, removes or replaces it in between, and a forked child has nothing to take over.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from errno import EAGAIN, EDQUOT, EINTR, EMFILE, ENFILE, ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.errors import ConfigError
from pellucid_exporters.spool import MOST_AT_ONCE

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections import deque

    from pellucid_exporters.file.options import File

LONGEST_FRAGMENT: Final = 16 * 1024 * 1024
"""Bytes. Of a torn line that is longer the end is marked by a newline: it is none of ours, and not moved."""

_BLOCK: Final = 64 * 1024
_PRIVATE: Final = 0o600
_STAMP: Final = "%Y%m%dT%H%M%S.%fZ"
_PASSING: Final = frozenset({ENOSPC, EDQUOT, EMFILE, ENFILE, EINTR, EAGAIN})
"""Errors that may be transient."""


class LineFile:
    """Appender of lines. Not thread-safe.

    Attributes:
        number: Number of files at the path that were written to so far; it grows after each rotation.
    """

    name = "file"
    pulse: float | None = None

    def __init__(self, options: File) -> None:
        self._path = Path.cwd() / options.path  # a later change of the working directory does not move the file
        self._torn = Path(f"{self._path}.torn")
        self._max_bytes = options.max_bytes
        self._max_age = options.max_age
        self._keep = options.keep
        self._open_now: int | None = None
        self.number = 0
        self._identity: tuple[int, int] | None = None

    def check(self) -> None:
        """Open the file once.

        Raises:
            ConfigError: the file can never be written to.
        """
        try:
            file = self._open()
            self._identify(file)
            os.close(file)
        except OSError as error:
            if error.errno not in _PASSING:
                raise ConfigError(
                    f"file={str(self._path)!r} cannot be written to ({error.strerror}); name a file in a folder that "
                    f"exists and that this process may write to"
                ) from error

    def repair(self) -> None:
        """Move a line torn by a crash to `<path>.torn`, so that the file contains whole lines only.

        Raises:
            OSError: the file or its disk is not writable.
        """
        with self._held():
            pass

    def append(self, chunks: deque[bytes]) -> None:
        """Write chunks of whole lines and remove written chunks from `chunks`.

        Raises:
            OSError: the file or its disk is not writable; chunks that remain in `chunks` are not in the file.
        """
        while chunks:
            with self._held() as file:
                state = os.fstat(file)
                if stat.S_ISREG(state.st_mode) and self._is_due(state, len(chunks[0])):
                    self._put_aside()
                    continue
                limit = MOST_AT_ONCE
                if self._max_bytes is not None and stat.S_ISREG(state.st_mode):
                    limit = min(limit, self._max_bytes - state.st_size)
                count = _fitting(chunks, limit)
                _write(file, b"".join([chunks[number] for number in range(count)]))
                for _ in range(count):
                    chunks.popleft()

    def close(self) -> None:
        """Do nothing: the file is closed after each write."""

    def forget(self) -> None:
        """Close, in a forked child, the file that the parent had open at the fork; the copy would keep it locked."""
        if self._open_now is not None:
            os.close(self._open_now)
            self._open_now = None

    @contextmanager
    def _held(self) -> Iterator[int]:
        """Yield the file at the path, locked and without a torn line."""
        file = self._locked()
        try:
            self._identify(file)
            if stat.S_ISREG(os.fstat(file).st_mode):
                self._repair(file)
            yield file
        finally:
            self._open_now = None
            _unlock(file)
            os.close(file)

    def _locked(self) -> int:
        while True:
            file = self._open_now = self._open()
            try:
                _lock(file)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file), self._path.stat()):
                        return file
            except BaseException:
                self._open_now = None
                os.close(file)
                raise
            self._open_now = None
            os.close(file)  # rotated while waiting for the lock, by another process of ours or by logrotate

    def _open(self) -> int:
        """Open for appending. Raise for a pipe without a reader instead of waiting."""
        flags = os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(self._path.stat().st_mode):
                flags |= os.O_WRONLY
        file = os.open(self._path, flags if flags & os.O_WRONLY else flags | os.O_RDWR, _PRIVATE)
        os.set_blocking(file, True)
        return file

    def _identify(self, file: int) -> None:
        state = os.fstat(file)
        if self._identity != (state.st_dev, state.st_ino):
            self._identity = state.st_dev, state.st_ino
            self.number += 1

    def _is_due(self, state: os.stat_result, more: int) -> bool:
        if state.st_size == 0:
            return False
        if self._max_bytes is not None and state.st_size + more > self._max_bytes:
            return True
        return self._max_age is not None and state.st_mtime // self._max_age < time.time() // self._max_age

    def _put_aside(self) -> None:
        path = self._path.resolve()  # a link stays; its target is rotated
        aside = rotated_files(path)
        now = datetime.now(UTC)
        if aside and (latest := _stamp_of(aside[-1])):  # a clock set back must not make this file the oldest
            now = max(now, latest + timedelta(microseconds=1))
        with suppress(FileNotFoundError):  # another process was faster
            path.rename(f"{path}.{now.strftime(_STAMP)}")
        if self._keep is not None:
            for old in rotated_files(path)[: -self._keep]:
                with suppress(FileNotFoundError):
                    old.unlink()

    def _repair(self, file: int) -> None:
        size = os.fstat(file).st_size
        if size == 0 or _read(file, size - 1, 1) == b"\n":
            return
        start = _start_of_last_line(file, size)
        fragment = _read(file, start, size - start) if size - start <= LONGEST_FRAGMENT else None
        if fragment is None or _is_object(fragment):
            _write(file, b"\n")
            return
        torn = os.open(self._torn, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _PRIVATE)
        try:
            _write(torn, fragment + b"\n")
        finally:
            os.close(torn)
        os.ftruncate(file, start)


def _fitting(chunks: deque[bytes], limit: int) -> int:
    """Return the number of chunks that fit, at least one."""
    count, size = 0, 0
    for chunk in chunks:
        size += len(chunk)
        if count and size > limit:
            break
        count += 1
    return count


def _write(file: int, content: bytes) -> None:
    """Append all of `content`, or nothing."""
    before = os.fstat(file)
    written = 0
    try:
        while written < len(content):
            written += os.write(file, content[written:] if written else content)
    except OSError:
        # Remove a partial write, unless a process that ignores locks has appended to it.
        if written and stat.S_ISREG(before.st_mode) and os.fstat(file).st_size == before.st_size + written:
            os.ftruncate(file, before.st_size)
        raise


def _start_of_last_line(file: int, size: int) -> int:
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        newline = _read(file, start, end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _read(file: int, start: int, size: int) -> bytes:
    os.lseek(file, start, os.SEEK_SET)
    content = b""
    while len(content) < size and (more := os.read(file, size - len(content))):
        content += more
    return content


def _is_object(fragment: bytes) -> bool:
    """Return whether this is a whole line that lacks only its newline."""
    try:
        return isinstance(json.loads(fragment), dict)
    except (ValueError, RecursionError):
        return False


def rotated_files(path: Path) -> list[Path]:
    """Return the rotated files, the oldest first."""
    own = re.compile(re.escape(path.name) + r"\.\d{8}T\d{6}\.\d{6}Z")
    return sorted(file for file in path.parent.iterdir() if own.fullmatch(file.name) and _stamp_of(file))


def _stamp_of(path: Path) -> datetime | None:
    """Return when a file was rotated. Does not use `strptime`, which imports a module on first use."""
    try:
        return datetime.fromisoformat(path.name[-len("20260101T000000.000000Z") :])
    except ValueError:
        return None  # digits that are not a date: not our file


def _lock(file: int) -> None:
    """Wait until no other process is writing. On platforms without these locks, each process needs its own file."""
    if sys.platform != "win32" and stat.S_ISREG(os.fstat(file).st_mode):
        fcntl.flock(file, fcntl.LOCK_EX)


def _unlock(file: int) -> None:
    """Unlock all copies of the descriptor: a child forked in the meantime may have one."""
    if sys.platform != "win32" and stat.S_ISREG(os.fstat(file).st_mode):
        fcntl.flock(file, fcntl.LOCK_UN)
