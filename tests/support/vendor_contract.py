"""The contract of models for an adapter: its vendor is a local server that speaks the vendor's format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from pellucid import TextPart
from pellucid.testing import Answers, Fails, ModelContract
from pellucid.testing.request_rules import broken_by_turns
from pellucid.testing.samples import answer
from support.vendor_server import Answer, Cut, Hang, answer_json, answer_sse, vendor_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pellucid import Model, ModelResponse
    from pellucid.errors import ErrorKind
    from pellucid.testing import ScriptedVendor
    from pellucid.testing.request_rules import Turn
    from support.vendor_server import Received, VendorServer

JSON = dict[str, Any]
REFUSED: JSON = {"type": "invalid_request_error", "code": 400, "status": "INVALID_ARGUMENT"}


class VendorContract(ModelContract):
    """The contract, with the vendor's format left open.

    Attributes:
        server: The vendor.
        ending: How many events at the end of a stream say that the answer is over.
        statuses: HTTP statuses of failures.
    """

    server: VendorServer
    ending: ClassVar[int]
    statuses: ClassVar[Mapping[ErrorKind, int]] = {
        "auth": 401,
        "invalid_request": 400,
        "rate_limited": 429,
        "timeout": 504,
        "unavailable": 503,
    }

    @pytest.fixture(autouse=True)
    def _serve(self) -> Iterator[None]:
        with vendor_server() as self.server:
            yield
        del self.server  # pytest keeps the instance of each test until the end

    def model_at(self, url: str) -> Model:
        """Return a model whose vendor is at this address."""
        raise NotImplementedError

    def whole(self, response: ModelResponse) -> JSON:
        """Return the body of a whole answer."""
        raise NotImplementedError

    def events(self, response: ModelResponse) -> list[bytes]:
        """Return the events of a streamed answer."""
        raise NotImplementedError

    def fault(self, kind: ErrorKind, status: int) -> JSON:
        """Return the body of an error."""
        raise NotImplementedError

    @staticmethod
    def turns(body: JSON) -> list[Turn]:
        """Return the turns of a request; one that breaks a rule of all vendors is refused."""
        raise NotImplementedError

    def is_streamed(self, received: Received) -> bool:
        """Return whether a stream is asked for."""
        return bool(received.json.get("stream"))

    def model_that(self, vendor: ScriptedVendor) -> Model:
        """Return a model whose vendor is the server."""
        self.server.always(lambda received: self._reply(vendor, received))
        self.server.on_left = vendor.leave
        return self.model_at(self.server.url)

    def _reply(self, vendor: ScriptedVendor, received: Received) -> Answer:
        deed = vendor.receive(received.body)
        is_streamed = self.is_streamed(received)
        if broken := [*broken_by_turns(self.turns(received.json))]:
            return answer_json({"error": {**REFUSED, "message": "; ".join(broken)}}, status=400)
        if isinstance(deed, Answers):
            return answer_sse(*self.events(deed.response)) if is_streamed else answer_json(self.whole(deed.response))
        if isinstance(deed, Fails) and (not deed.text or not is_streamed):
            return self._failed(deed, is_streamed=is_streamed)
        end = Cut() if isinstance(deed, Fails) else Hang()
        return answer_sse(*self._begun(deed.text), end) if is_streamed else Answer(body=[end])

    def _begun(self, text: str) -> list[bytes]:
        """Return the events of an answer that has not come to its end."""
        return self.events(answer((TextPart(text),), self.lacks))[: -self.ending]

    def _failed(self, deed: Fails, *, is_streamed: bool) -> Answer:
        if deed.kind == "invalid_response":
            return answer_sse(b"data: {nonsense\n\n") if is_streamed else Answer(body=[b'{"nonsense'])
        status = self.statuses[deed.kind]
        headers = {} if deed.retry_after is None else {"retry_after": f"{deed.retry_after:g}"}
        return answer_json(self.fault(deed.kind, status), status=status, **headers)


def pieces(text: str, size: int = 3) -> list[str]:
    """Return a text in pieces."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def json_text(value: object) -> str:
    """Return arguments of a tool call as a vendor writes them: text stays as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
