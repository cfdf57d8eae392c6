"""Answers of Anthropic's Messages API, by its public description."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.vendor_server import Answer, answer_json, answer_sse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.vendor_server import Chunk

KEY = "sk-ant-test-key-0123456789"
USAGE = {"input_tokens": 12, "output_tokens": 7}
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def message(*content: dict[str, Any], stop: str | None = "end_turn", **more: Any) -> dict[str, Any]:
    """Return a message."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5-5-20260901",
        "content": list(content),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": USAGE,
        **more,
    }


def text(content: str) -> dict[str, Any]:
    """Return a text block."""
    return {"type": "text", "text": content}


def tool_use(name: str, given: dict[str, Any], call: str) -> dict[str, Any]:
    """Return a call of a tool."""
    return {"type": "tool_use", "id": call, "name": name, "input": given}


def thinking(content: str, signature: str = "sig-1") -> dict[str, Any]:
    """Return a thought."""
    return {"type": "thinking", "thinking": content, "signature": signature}


def event(name: str, **data: Any) -> bytes:
    """Return one server-sent event."""
    body = json.dumps({"type": name, **data}, ensure_ascii=False)
    return f"event: {name}\ndata: {body}\n\n".encode()


def events(whole: dict[str, Any], *, piece: int = 3) -> list[bytes]:
    """Return the stream of a message: its blocks in pieces of so many characters."""
    begun = {**whole["usage"], "output_tokens": 1} if whole["usage"] else {}
    head = {**whole, "content": [], "stop_reason": None, "usage": begun}
    sent = [event("message_start", message=head), PING]
    for index, block in enumerate(whole["content"]):
        sent += _block(index, block, piece)
    delta = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    sent += [event("message_delta", delta=delta, usage=whole["usage"]), event("message_stop")]
    return sent


def _block(index: int, block: dict[str, Any], piece: int) -> list[bytes]:
    kind = block["type"]
    start, deltas = block, []
    if kind == "text":
        start = {**block, "text": ""}
        deltas = [{"type": "text_delta", "text": each} for each in _pieces(block["text"], piece)]
        for citation in start.pop("citations", None) or []:
            deltas.append({"type": "citations_delta", "citation": citation})
    elif kind == "thinking":
        start = {**block, "thinking": "", "signature": ""}
        deltas = [{"type": "thinking_delta", "thinking": each} for each in _pieces(block["thinking"], piece)]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif kind in ("tool_use", "server_tool_use"):
        start = {**block, "input": {}}
        given = json.dumps(block["input"], ensure_ascii=False) if block["input"] else ""
        deltas = [{"type": "input_json_delta", "partial_json": each} for each in _pieces(given, piece)]
    return [
        event("content_block_start", index=index, content_block=start),
        *(event("content_block_delta", index=index, delta=delta) for delta in deltas),
        event("content_block_stop", index=index),
    ]


def _pieces(content: str, size: int) -> list[str]:
    return [content[start : start + size] for start in range(0, len(content), size)]


def whole_or_streamed(whole: dict[str, Any], *, stream: bool) -> Answer:
    """Return the answer that a request for one or the other gets."""
    return streamed(events(whole)) if stream else answer_json(whole, request_id="req_1")


def streamed(sent: Sequence[Chunk]) -> Answer:
    """Return a streamed answer."""
    return answer_sse(*sent, request_id="req_1")


def fault(kind: str, said: str = "no", *, status: int, **headers: str) -> Answer:
    """Return an error."""
    body = {"type": "error", "error": {"type": kind, "message": said}, "request_id": "req_1"}
    return answer_json(body, status=status, **{"request_id": "req_1", **headers})
