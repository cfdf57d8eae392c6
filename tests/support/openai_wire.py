"""OpenAI's wire formats, as its API reference describes them: whole answers, and the same answers as events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from support.models import read
from support.runs import within

if TYPE_CHECKING:
    from pellucid import Model, ModelRequest, ModelResponse

JSON = dict[str, Any]

CHAT_USAGE: Final[JSON] = {
    "prompt_tokens": 30,
    "completion_tokens": 12,
    "total_tokens": 42,
    "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
RESPONSE_USAGE: Final[JSON] = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 4},
    "output_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 42,
}


def sse(*events: JSON | str) -> bytes:
    """Return events; those of the Responses API are named."""
    return b"".join(_event(event) for event in events)


def _event(event: JSON | str) -> bytes:
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n".encode()


def pieces(text: str, size: int = 3) -> list[str]:
    """Return a text in pieces."""
    return [text[start : start + size] for start in range(0, len(text), size)]


# --- Chat Completions -------------------------------------------------------------------------------------------------


def completion(message: JSON, finish_reason: str | None = "stop", usage: JSON | None = CHAT_USAGE) -> JSON:
    """Return a whole answer."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-x-2026",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}],
        "usage": usage,
    }


def chunk(delta: JSON | None, finish_reason: str | None = None, **others: Any) -> JSON:
    """Return one event of a streamed answer; without a delta, one without choices."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-x-2026",
        "choices": [] if delta is None else [choice],
        **others,
    }


def call(name: str, arguments: str, call_id: str) -> JSON:
    """Return a tool call of a whole answer."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def chunks(answer: JSON) -> list[JSON | str]:
    """Return a whole answer as the events in which it would have been streamed."""
    choice = answer["choices"][0]
    message = choice["message"]
    events: list[JSON | str] = [chunk({"role": "assistant", "content": message.get("content") and ""})]
    for name in ("reasoning_content", "reasoning", "content", "refusal"):
        events += [chunk({name: piece}) for piece in pieces(message.get(name) or "")]
    calls = message.get("tool_calls") or []
    for index, each in enumerate(calls):
        begin = {"index": index, **each, "function": {"name": each["function"]["name"], "arguments": ""}}
        events.append(chunk({"tool_calls": [begin]}))
    # The pieces of the arguments come in turn, of one call and of the other.
    texts = [pieces(each["function"]["arguments"]) for each in calls]
    for turn in range(max(map(len, texts), default=0)):
        for index, text in enumerate(texts):
            if turn < len(text):
                events.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": text[turn]}}]}))
    events.append(chunk({}, choice["finish_reason"]))
    if answer.get("usage") is not None:
        events.append(chunk(None, usage=answer["usage"]))
    return [*events, "[DONE]"]


# --- Responses --------------------------------------------------------------------------------------------------------


def response(*output: JSON, status: str = "completed", usage: JSON | None = RESPONSE_USAGE, **others: Any) -> JSON:
    """Return a whole answer."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-x-2026",
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": list(output),
        "usage": usage,
        **others,
    }


def said(text: str, **others: Any) -> JSON:
    """Return an item that is a message."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content, **others}


def refusal(text: str) -> JSON:
    """Return an item that is a refusal."""
    return {**said(""), "content": [{"type": "refusal", "refusal": text}]}


def function_call(name: str, arguments: str, call_id: str, **others: Any) -> JSON:
    """Return an item that is a tool call."""
    told = {"call_id": call_id, "name": name, "arguments": arguments, "status": "completed"}
    return {"type": "function_call", "id": f"fc_{call_id}", **told, **others}


def thought(*texts: str, encrypted: str | None = "c2VjcmV0") -> JSON:
    """Return an item that is a summary of reasoning."""
    summary = [{"type": "summary_text", "text": text} for text in texts]
    return {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": encrypted}


def events(answer: JSON) -> list[JSON | str]:
    """Return a whole answer as the events in which it would have been streamed."""
    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    told: list[JSON | str] = [{"type": "response.created", "response": begun}]
    told.append({"type": "response.in_progress", "response": begun})
    for index, item in enumerate(answer["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        told.append({"type": "response.output_item.added", "output_index": index, "item": _begun(item)})
        told += [{**event, **place} for event in _item_events(item)]
        told.append({"type": "response.output_item.done", "output_index": index, "item": item})
    return [*told, {"type": f"response.{answer['status']}", "response": answer}]


def _begun(item: JSON) -> JSON:
    return {**item, **{name: "" for name in ("arguments",) if name in item}, "status": "in_progress"}


def _item_events(item: JSON) -> list[JSON]:
    if item["type"] == "function_call":
        kind = "response.function_call_arguments.delta"
        return [{"type": kind, "delta": piece} for piece in pieces(item["arguments"])]
    found: list[JSON] = []
    for index, part in enumerate(item.get("summary", ())):
        found.append({"type": "response.reasoning_summary_part.added", "summary_index": index})
        kind = "response.reasoning_summary_text.delta"
        found += [{"type": kind, "summary_index": index, "delta": piece} for piece in pieces(part["text"])]
    for part in item.get("content", ()):
        name = "refusal" if part["type"] == "refusal" else "text"
        kind = "response.refusal.delta" if name == "refusal" else f"response.{part['type']}.delta"
        found += [{"type": kind, "delta": piece} for piece in pieces(part[name])]
    return found


# --- reading ----------------------------------------------------------------------------------------------------------


async def ask(model: Model, request: ModelRequest, *, stream: bool) -> ModelResponse:
    """Return the whole answer, in one way or the other."""
    return (await read(model, request))[1] if stream else await within(model.generate(request))
