"""A test double of a vendor that answers, fails or hangs as scripted, and records its requests."""

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
    """The vendor answers.

    Attributes:
        response: The answer; members that are `None` are absent from the vendor's response.
    """

    response: ModelResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Fails:
    """The vendor refuses the request, fails, or drops the connection.

    Attributes:
        kind: Kind of the failure: `timeout`, `rate_limited`, `unavailable`, `auth`, `invalid_request`, or
            `invalid_response` (a malformed answer).
        retry_after: Seconds to wait before a retry, as the vendor requests.
        text: Text of a streamed answer before the connection breaks; an answer without streaming fails as a whole.
    """

    kind: ErrorKind
    retry_after: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hangs:
    """The vendor accepts the request and never completes its answer.

    Attributes:
        text: Text of a streamed answer before it hangs; an answer without streaming hangs at once.
    """

    text: str = ""


Deed: TypeAlias = Answers | Fails | Hangs
"""Reaction of the vendor to one request."""


class ScriptedVendor:
    """A scripted vendor, independent of the transport between it and the model; safe to use from any thread.

    A double of the vendor, such as a local HTTP server, calls `receive` for every request and performs the returned
    action in the vendor's own format. A model without a vendor can use `play`.

    Args:
        does: The action for each request, or a function of the request's text that returns it.

    Attributes:
        received: The text of each request, in order.
        left: Number of hanging requests whose client disconnected.
    """

    def __init__(self, does: Deed | Callable[[str], Deed]) -> None:
        self._does = does
        self._lock = threading.Lock()
        self.received: list[str] = []
        self.left = 0

    def receive(self, sent: str | bytes) -> Deed:
        """Record the body of a request, and return the action to perform."""
        text = sent.decode("utf-8", "replace") if isinstance(sent, bytes) else sent
        with self._lock:
            self.received.append(text)
        return self._does(text) if callable(self._does) else self._does

    def leave(self) -> None:
        """Record that the client of a hanging request disconnected."""
        with self._lock:
            self.left += 1

    async def play(self, request: ModelRequest) -> ModelResponse | AsyncIterator[ModelDelta]:
        """Perform the action for a model without a vendor: `FunctionModel(vendor.play)`.

        Raises:
            ModelError: the action is `Fails`; raised while the stream is read.
        """
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
                "scripted", f"scripted failure: {deed.kind}", error_kind=deed.kind, retry_after=deed.retry_after
            ) from ConnectionError("the scripted vendor dropped the connection")
