"""A vendor that does as it is told while a test runs: it answers, fails or hangs, and keeps what it was sent."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeAlias

import anyio

from pellucid.errors import ErrorKind, ModelError
from pellucid.models import ModelDelta, ModelRequest, ModelResponse


@dataclass(frozen=True, slots=True)
class Answers:
    """The vendor answers this. What is `None` in it is absent from the vendor's answer."""

    response: ModelResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Fails:
    """The vendor refuses, fails, or breaks off.

    Attributes:
        kind: What is wrong: `timeout`, `rate_limited`, `unavailable`, `auth`, `invalid_request`, or
            `invalid_response` (an answer that makes no sense).
        retry_after: Seconds after which the vendor wants to be asked again.
        text: What a streamed answer says before the connection breaks; an answer in one piece fails as a whole.
    """

    kind: ErrorKind
    retry_after: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hangs:
    """The vendor takes the request and never comes to an end.

    Attributes:
        text: What a streamed answer says before it hangs; an answer in one piece hangs at once.
    """

    text: str = ""


Deed: TypeAlias = Answers | Fails | Hangs


class ScriptedVendor:
    """A vendor that does what a test wants, whatever stands between it and the model; safe from any thread.

    A double of the vendor, such as a local HTTP server, calls `receive` for every request and does what is returned,
    in the vendor's own format. A model that has no vendor is built on `play`.

    Args:
        does: What it does with each request, or a function of the request's text that says so.

    Attributes:
        received: The text of each request, in order.
        left: Hanging requests whose client went away.
    """

    def __init__(self, does: Deed | Callable[[str], Deed]) -> None:
        self._does = does
        self._lock = threading.Lock()
        self.received: list[str] = []
        self.left = 0

    def receive(self, sent: str | bytes) -> Deed:
        """Keep the body of a request, and return what to do with it."""
        text = sent.decode("utf-8", "replace") if isinstance(sent, bytes) else sent
        with self._lock:
            self.received.append(text)
        return self._does(text) if callable(self._does) else self._does

    def leave(self) -> None:
        """Note that the client of a hanging request closed its connection."""
        with self._lock:
            self.left += 1

    async def play(self, request: ModelRequest) -> ModelResponse | AsyncIterator[ModelDelta]:
        """Do it, for a model that has no vendor: `FunctionModel(vendor.play)`."""
        deed = self.receive(repr(request))
        return deed.response if isinstance(deed, Answers) else self._unfinished(deed)

    async def _unfinished(self, deed: Fails | Hangs) -> AsyncIterator[ModelDelta]:
        try:
            if deed.text:
                yield ModelDelta("text", deed.text)
            if isinstance(deed, Hangs):
                await anyio.sleep_forever()
        finally:
            if isinstance(deed, Hangs):
                self.leave()
        if isinstance(deed, Fails):
            raise ModelError(
                "scripted", f"it was told to fail: {deed.kind}", error_kind=deed.kind, retry_after=deed.retry_after
            ) from ConnectionError("the scripted vendor broke off")
