"""Output of the program on the streams where runs are shown."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TextIO

Write = Callable[[str], int]


class _Watched(NamedTuple):
    """A stream whose `write` is wrapped.

    Attributes:
        before: What another had put in its place before; None for the method of the stream's class.
    """

    stream: TextIO
    write: Write
    before: Write | None


class ProgramOutput:
    """Watcher of what the program writes to streams.

    It wraps `write` of the streams themselves, so that others that hold them, such as handlers of `logging`, are seen
    too, and `sys.stdout` stays the same object.

    Attributes:
        is_mid_line: Whether the program has written the beginning of a line, and not yet its end.
        lock: Lock that the program holds while it writes.
    """

    def __init__(self, streams: Sequence[TextIO], *, before: Callable[[], None] = lambda: None) -> None:
        """Watch streams.

        Args:
            streams: The streams; several are the same terminal.
            before: Function to call before each text of the program is written.
        """
        self.is_mid_line = False
        self._before: Final = before
        self.lock = threading.RLock()  # reentrant: `before` writes, and so may the garbage collector
        self._is_ours = False
        self._watched: list[_Watched] = []
        for number, stream in enumerate(streams):
            if stream not in streams[:number]:
                self._watch(stream)

    def line_end(self, stream: TextIO) -> str:
        """Return the end of the line that the program has begun in a stream, and count the line as ended."""
        is_open = self.is_mid_line and any(stream is watched.stream for watched in self._watched)
        self.is_mid_line = self.is_mid_line and not is_open
        return "\n" if is_open else ""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold back what other threads write; what this one writes in the block is not the program's."""
        with self.lock:
            before, self._is_ours = self._is_ours, True
            try:
                yield
            finally:
                self._is_ours = before

    def release(self) -> None:
        """Restore the streams, except those that another has wrapped since: their text passes through unchanged."""
        watched, self._watched = self._watched, []
        for stream, ours, before in watched:
            attributes = vars(stream)
            if attributes.get("write") is ours:
                attributes.update(write=before) if before is not None else attributes.pop("write")
        self.is_mid_line = False

    def renew(self) -> None:
        """Replace the lock in a forked child, as a thread of the parent may hold it."""
        self.lock = threading.RLock()
        self._is_ours = False

    def _watch(self, stream: TextIO) -> None:
        written: Write = stream.write

        def write(text: str) -> int:
            with self.lock:
                if self._is_ours or not self._watched:
                    return written(text)
                self._before()
                count = written(text)
                if text:
                    self.is_mid_line = not text.endswith("\n")
                return count

        try:
            before = vars(stream).get("write")
            stream.write = write  # type: ignore[method-assign]
        except (AttributeError, TypeError):  # a type whose objects have no attributes of their own
            return
        self._watched.append(_Watched(stream, write, before))
