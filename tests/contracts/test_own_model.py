"""The contract of models, on one as users write them: a vendor of few features, a double in the same process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
import httpx2
import pytest

from pellucid import Message, ModelDelta, ModelError, ModelResponse, TextPart, ToolCall, ToolResult, Usage
from pellucid.testing import Answers, Fails, Hangs, ModelContract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Iterator

    from pellucid import ModelRequest
    from pellucid.errors import ErrorKind
    from pellucid.messages import Part
    from pellucid.testing import Deed, ScriptedVendor

KINDS: Final[dict[int, ErrorKind]] = {
    400: "invalid_request",
    401: "auth",
    429: "rate_limited",
    503: "unavailable",
    504: "timeout",
}


class AcmeModel:
    """A model that knows text and tools, and streams lines of JSON."""

    name = "acme-1"
    provider_name = "acme"

    def __init__(self, transport: httpx2.AsyncBaseTransport) -> None:
        self._transport = transport

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the whole answer."""
        body = self._body(request)
        try:
            async with httpx2.AsyncClient(transport=self._transport) as client:
                answer = await client.post("http://acme.test/", json=body)
                return _response(answer.raise_for_status().json())
        except Exception as error:
            raise self._failure(error) from error

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        """Yield what arrives, and last the whole answer."""
        body = {**self._body(request), "stream": True}
        try:
            async with (
                httpx2.AsyncClient(transport=self._transport) as client,
                client.stream("POST", "http://acme.test/", json=body) as answer,
            ):
                async for line in answer.raise_for_status().aiter_lines():
                    piece = json.loads(line)
                    if "parts" in piece:
                        yield _response(piece)
                        return
                    yield ModelDelta(**piece)
        except Exception as error:
            raise self._failure(error) from error
        cut = ConnectionError("the stream ended before the answer did")
        raise self._failure(cut) from cut

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        settings: dict[str, Any] = dict(request.settings)
        extra = settings.pop("extra", {})
        if unknown := {*settings} - {"max_tokens"}:
            raise ModelError(self.name, f"it has no {sorted(unknown)}", error_kind="invalid_request")
        return {
            "system": request.instructions,
            "tools": [tool.to_dict() for tool in request.tools],
            "messages": [
                {"role": message.role, "parts": [self._part(part) for part in message.parts]}
                for message in request.messages
            ],
            **settings,
            **extra,
        }

    def _part(self, part: Part) -> dict[str, Any]:
        response = part.response if isinstance(part, ToolResult) else None
        if isinstance(response, tuple) or part.type not in ("text", "reasoning", "tool_call", "tool_call_response"):
            raise ModelError(self.name, f"it takes no {part.type}", error_kind="invalid_request")
        return part.to_dict()

    def _failure(self, error: Exception) -> ModelError:
        kind: ErrorKind = "invalid_response" if isinstance(error, ValueError | LookupError) else "unavailable"
        wait: str | None = None
        if isinstance(error, httpx2.HTTPStatusError):
            kind = KINDS[error.response.status_code]
            wait = error.response.headers.get("retry-after")
        return ModelError(self.name, str(error), error_kind=kind, retry_after=float(wait) if wait else None)


def _response(answer: dict[str, Any]) -> ModelResponse:
    parts = [ToolCall(**part) if "name" in part else TextPart(**part) for part in answer["parts"]]
    usage = Usage(**answer["usage"])
    return ModelResponse(
        message=Message("assistant", parts), usage=usage, finish_reason=answer["finish"], id=answer["id"]
    )


class Acme(httpx2.AsyncByteStream):
    """Answer of the vendor as a stream of bytes. Attributes: deed: the kind of answer to send."""

    def __init__(self, vendor: ScriptedVendor, deed: Deed, *, is_streamed: bool) -> None:
        self.deed = deed
        self._vendor = vendor
        self._is_streamed = is_streamed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the answer."""
        if isinstance(self.deed, Answers):
            for piece in self._pieces(self.deed.response):
                yield json.dumps(piece).encode() + b"\n"
            return
        if self._is_streamed and self.deed.text:
            yield json.dumps({"type": "text", "content": self.deed.text}).encode() + b"\n"
        if isinstance(self.deed, Hangs):
            await anyio.sleep_forever()
        elif self.deed.kind == "invalid_response":
            yield b"{nonsense\n"

    async def aclose(self) -> None:
        """Note that the client has gone."""
        if isinstance(self.deed, Hangs):
            self._vendor.leave()

    def _pieces(self, response: ModelResponse) -> Iterator[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        for part in response.message.parts:
            if isinstance(part, TextPart):
                parts.append({"content": part.content})
                pieces = [{"type": "text", "content": letter} for letter in part.content]
            else:
                assert isinstance(part, ToolCall)
                parts.append({"name": part.name, "arguments": part.arguments, "id": part.id})
                pieces = [{"type": "tool_call", "content": part.name}]
            yield from pieces if self._is_streamed else ()
        usage = {"input_tokens": response.usage.input_tokens, "output_tokens": response.usage.output_tokens}
        yield {"parts": parts, "usage": usage, "finish": response.finish_reason, "id": response.id}


class TestAcmeModel(ModelContract):
    """A model of a vendor that has little."""

    lacks: ClassVar[Collection[str]] = (
        *("audio", "document", "document_uri", "file", "image", "image_result", "image_uri", "video"),
        *("frequency_penalty", "presence_penalty", "reasoning_level", "seed", "stop_sequences"),
        *("temperature", "top_k", "top_p"),
        *("cache_read_input_tokens", "cache_write_input_tokens", "reasoning_output_tokens"),
        *("model", "reasoning"),
    )

    @pytest.fixture
    def anyio_backend(self) -> str:
        """Run on asyncio only: `aiter_lines` leaves generators open, and trio warns about them."""
        return "asyncio"

    async def model_that(self, vendor: ScriptedVendor) -> AcmeModel:
        """Return a model whose transport is the vendor."""

        async def reply(request: httpx2.Request) -> httpx2.Response:
            body = Acme(vendor, vendor.receive(request.content), is_streamed=b'"stream":true' in request.content)
            status = 200
            headers = {}
            if isinstance(body.deed, Fails) and not body.deed.text and body.deed.kind != "invalid_response":
                status = next(status for status, kind in KINDS.items() if kind == body.deed.kind)
                headers = {} if body.deed.retry_after is None else {"retry-after": str(body.deed.retry_after)}
            return httpx2.Response(status, headers=headers, stream=body)

        return AcmeModel(httpx2.MockTransport(reply))
