"""Gemini's `generateContent` on the wire, as its public reference describes it: answers, streams and errors."""

from __future__ import annotations

import base64
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio

from pellucid import Message, ModelDelta, ModelResponse
from pellucid.models import ModelRequest
from pellucid.models.gemini import GeminiModel
from support.vendor_server import Answer, answer_json, answer_sse, vendor_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.vendor_server import Chunk, VendorServer

NAME = "gemini-3.8-flash"
KEY = "AIzaSyTotallySecret"
ID = "mAitaLegLPPH7M8Px9fg6A0"
USAGE = {
    "promptTokenCount": 120,
    "cachedContentTokenCount": 100,
    "candidatesTokenCount": 20,
    "thoughtsTokenCount": 30,
    "totalTokenCount": 170,
}
SIGNATURE = base64.b64encode(b"\xff\xfe a thought \x00 signed").decode()
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n pixel").decode()

JSON = dict[str, Any]


ASKED = ModelRequest(messages=[Message("user", "Hello?")])


@asynccontextmanager
async def gemini(name: str = NAME, **options: Any) -> AsyncIterator[tuple[GeminiModel, VendorServer]]:
    """Run a server, and a model that asks it; all of it must not take longer than ten seconds."""
    with anyio.fail_after(60), vendor_server() as server:
        model = GeminiModel(name, api_key=KEY, base_url=server.url, **options)
        try:
            yield model, server
        finally:
            await model.aclose()


async def read(model: GeminiModel, request: ModelRequest = ASKED) -> tuple[list[ModelDelta], ModelResponse]:
    """Read a stream to its end."""
    *deltas, response = [item async for item in model.stream(request)]
    assert isinstance(response, ModelResponse)
    return [delta for delta in deltas if isinstance(delta, ModelDelta)], response


async def same(complete: JSON, *pieces: JSON) -> tuple[list[ModelDelta], ModelResponse]:
    """Ask for one answer whole and in pieces, which must come to the same."""
    async with gemini() as (model, server):
        server.answers(answer_json(complete), streamed(*pieces))
        generated = await model.generate(ASKED)
        deltas, response = await read(model)
        assert response == generated
        return deltas, response


async def sent(request: ModelRequest, name: str = NAME, **options: Any) -> JSON:
    """Return the body that is sent for a request; streams send the same."""
    async with gemini(name, **options) as (model, server):
        server.answers(whole(text("ok")), streamed(piece(text("ok"), finish="STOP")))
        await model.generate(request)
        await read(model, request)
        assert server.requests[0].body == server.requests[1].body
        body: JSON = server.requests[0].json
        return body


def text(content: str, **more: Any) -> JSON:
    """Return a text part."""
    return {"text": content, **more}


def thought(content: str, **more: Any) -> JSON:
    """Return a part that is a thought."""
    return {"text": content, "thought": True, **more}


def call(name: str, args: JSON | None = None, *, id: str | None = None, **more: Any) -> JSON:  # noqa: A002  (its name)
    """Return a part that is a function call; the API leaves empty arguments out."""
    given: JSON = {"name": name}
    if args:
        given["args"] = args
    if id is not None:
        given["id"] = id
    return {"functionCall": given, **more}


def image(content: str = PIXEL, **more: Any) -> JSON:
    """Return a part that is a picture."""
    return {"inlineData": {"mimeType": "image/png", "data": content}, **more}


def piece(*parts: JSON, finish: str | None = None, usage: JSON | None = None, **candidate: Any) -> JSON:
    """Return a `GenerateContentResponse`: a whole answer, or a piece of a stream."""
    found: JSON = {"index": 0, **candidate}
    if parts:
        found["content"] = {"role": "model", "parts": list(parts)}
    if finish is not None:
        found["finishReason"] = finish
    answer: JSON = {"candidates": [found], "modelVersion": f"{NAME}-2026-09", "responseId": ID}
    if usage is not None:
        answer["usageMetadata"] = usage
    return answer


def whole(*parts: JSON, finish: str = "STOP", usage: JSON | None = USAGE, **candidate: Any) -> Answer:
    """Return the HTTP answer for a whole answer."""
    return answer_json(piece(*parts, finish=finish, usage=usage, **candidate))


def event(value: object) -> bytes:
    """Return an event of a stream, with the line ends that the API uses."""
    return b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\r\n\r\n"


def streamed(*pieces: JSON | Chunk) -> Answer:
    """Return the HTTP answer for a stream; pieces that are no JSON are sent as they are."""
    return answer_sse(*(event(each) if isinstance(each, dict) else each for each in pieces))


def fault(code: int, status: str, message: str, *details: JSON) -> JSON:
    """Return the body of an error."""
    told: JSON = {"code": code, "message": message, "status": status}
    if details:
        told["details"] = list(details)
    return {"error": told}


def detail(kind: str, **members: Any) -> JSON:
    """Return one of an error's details."""
    return {"@type": f"type.googleapis.com/google.rpc.{kind}", **members}
