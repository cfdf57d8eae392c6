"""Bounded queue between runs and a file or store, and the thread that writes its items."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

_log: Final = logging.getLogger(__name__)

MOST_AT_ONCE: Final = 1024 * 1024
"""Size of the chunks from which on they are written."""

MOST_WAITING: Final = 16_384
"""Maximum number of queued spans and events; more are dropped and counted."""

MOST_TEXT: Final = 64 * 1024 * 1024
"""Maximum number of queued characters; beyond it, the next item is dropped."""

LINGER: Final = 0.1
"""Seconds to wait for more items before writing."""

FIRST_PAUSE: Final = 0.25
LONGEST_PAUSE: Final = 5.0
"""Seconds between two attempts while the destination is not writable."""


class Chunk(Protocol):
    """An encoded item."""

    def __len__(self) -> int:
        """Return the size, in bytes; 0 if nothing is to be written."""


T = TypeVar("T")
C = TypeVar("C", bound=Chunk)


class Destination(Protocol[C]):
    """Destination of chunks, called by the thread of the spool."""

    name: str
    """Noun for log messages, such as `file`."""

    pulse: float | None
    """Seconds after which `append` is called although there are no chunks; None for never."""

    def repair(self) -> None:
        """Prepare for the first chunks."""

    def append(self, chunks: deque[C]) -> None:
        """Write chunks and remove written ones from `chunks`; those that remain are written later."""

    def close(self) -> None:
        """Release the destination after the last chunks. Does not raise."""

    def forget(self) -> None:
        """Reset in a forked child."""


class Spool(Generic[T, C]):
    """Queue that accepts items from any thread without blocking and writes them in order."""

    def __init__(
        self,
        destination: Destination[C],
        encode: Callable[[T], C],
        *,
        on_failure: Callable[[], None],
        on_drop: Callable[[str, int], None],
    ) -> None:
        """Start the thread.

        Args:
            destination: Destination of the chunks.
            encode: Encodes an item, in the thread.
            on_failure: Called for each failed attempt and for each item that cannot be encoded.
            on_drop: Called with the reason and the number of dropped items.
        """
        self._destination = destination
        self._encode = encode
        self._on_failure = on_failure
        self._on_drop = on_drop
        self._refusal_logged = False
        self._start()

    def _start(self) -> None:
        # Reentrant, as SimpleQueue is: the garbage collector may end an abandoned span wherever this thread happens
        # to be.
        self._door = threading.RLock()
        self._queue: SimpleQueue[tuple[T, int] | None] = SimpleQueue()
        self._closed = False
        self._admitted = self._done = 0
        self._admitted_text = self._done_text = 0
        self._flushes: list[tuple[int, Future[bool]]] = []
        self._hurry = threading.Event()
        self._chunks: deque[C] = deque()
        self._sizes: deque[int] = deque()
        self._skipped: list[int] = []
        self._pause = 0.0
        self._thread = threading.Thread(target=self._work, name=f"pellucid-{self._destination.name}", daemon=True)
        self._thread.start()

    def put(self, item: T, size: int) -> None:
        """Queue an item with `size` characters of text, or drop and count it."""
        with self._door:
            if self._closed:
                return
            has_room = self._admitted - self._done < MOST_WAITING and self._admitted_text - self._done_text <= MOST_TEXT
            if has_room:
                self._admitted += 1
                self._admitted_text += size
        if has_room:
            self._queue.put((item, size))
        else:
            self._on_drop("queue_full", 1)

    def is_filled(self, share: float) -> bool:
        """Return whether a share of the queue is taken: items of which there may be a flood leave room for others."""
        waiting, text = self._admitted - self._done, self._admitted_text - self._done_text
        return waiting >= MOST_WAITING * share or text > MOST_TEXT * share

    def flush(self, timeout: float) -> bool:
        """Write queued items; return within `timeout` seconds whether all of them are written."""
        answer: Future[bool] = Future()
        with self._door:
            if self._done >= self._admitted or not self._thread.is_alive():
                return self._done >= self._admitted
            self._flushes.append((self._admitted, answer))
        self._hurry.set()
        try:
            return answer.result(timeout)
        except FutureTimeoutError:
            return False

    def close(self, timeout: float) -> None:
        """Write queued items and end the thread. Items not written within `timeout` seconds are dropped."""
        with self._door:
            if self._closed:
                return
            self._closed = True
        self._queue.put(None)
        self._hurry.set()
        self._thread.join(timeout)
        lost = self._admitted - self._done
        if lost:
            self._on_drop("shutdown", lost)
            name = self._destination.name
            _log.warning("%d spans and events were not written to the %s when it was closed; they are lost", lost, name)

    def renew(self) -> None:
        """Reset in a forked child: queued items belong to the parent."""
        was_closed = self._closed
        self._destination.forget()
        if not was_closed:
            self._start()

    def _work(self) -> None:
        self._attempt(self._destination.repair)
        while True:
            self._gather()
            before = len(self._chunks)
            succeeded = self._attempt(lambda: self._destination.append(self._chunks))
            sizes = [self._sizes.popleft() for _ in range(before - len(self._chunks))] + self._skipped
            self._skipped = []
            self._finish(len(sizes), sum(sizes))
            self._answer(succeeded=succeeded)
            if self._closed and (not succeeded or (self._queue.empty() and not self._chunks)):
                self._answer(succeeded=False)
                self._destination.close()
                return

    def _gather(self) -> None:
        """Wait for items, then encode as many as fit one write."""
        if self._chunks:
            self._hurry.wait(self._pause)
        else:
            try:
                self._take(self._queue.get(timeout=self._destination.pulse))
            except Empty:
                return
            if not self._flushes and not self._closed:
                self._hurry.wait(LINGER)
        self._hurry.clear()
        total = sum(map(len, self._chunks))
        while total < MOST_AT_ONCE:
            try:
                total += self._take(self._queue.get_nowait())
            except Empty:
                return

    def _take(self, entry: tuple[T, int] | None) -> int:
        if entry is None:
            return 0
        item, size = entry
        try:
            chunk = self._encode(item)
        except Exception as error:  # noqa: BLE001  (attributes may be of any type; the thread continues)
            chunk = None
            self._on_failure()
            if not self._refusal_logged:
                self._refusal_logged = True
                _log.warning("a span or event cannot be written as JSON (%s); more are only counted", type(error))
        length = len(chunk) if chunk is not None else 0
        if chunk is not None and length:
            self._chunks.append(chunk)
            self._sizes.append(size)
            return length
        self._skipped.append(size)
        return 0

    def _finish(self, items: int, size: int) -> None:
        with self._door:
            self._done += items
            self._done_text += size

    def _attempt(self, write: Callable[[], Any]) -> bool:
        """Write the chunks. Count every failure and log the first of a series."""
        try:
            write()
        except Exception as error:  # noqa: BLE001  (counted; the thread continues)
            self._on_failure()
            if not self._pause:
                _log.warning(
                    "telemetry cannot be written to its %s (%s); trying again, runs are not affected",
                    self._destination.name,
                    error,
                )
            self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
            return False
        if self._pause:
            _log.warning("telemetry is written to its %s again", self._destination.name)
            self._pause = 0.0
        return True

    def _answer(self, *, succeeded: bool) -> None:
        """Resolve pending flushes whose result is known."""
        with self._door:
            resolved = [(target, answer) for target, answer in self._flushes if self._done >= target or not succeeded]
            self._flushes = [flush for flush in self._flushes if flush not in resolved]
            done = self._done
        for target, answer in resolved:
            answer.set_result(done >= target)
