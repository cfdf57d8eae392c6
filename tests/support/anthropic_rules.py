"""Requests that Anthropic's Messages API refuses with 400, by its public description and its error messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pellucid.testing.request_rules import broken_by_turns
from support.anthropic_wire import fault
from support.vendor_server import Answer
from support.wire_turns import anthropic_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.vendor_server import Received, Reply

OWN_BLOCKS = frozenset(
    {
        "container_upload",
        "mcp_tool_listing",
        "mcp_tool_use",
        "redacted_thinking",
        "server_tool_use",
        "text",
        "thinking",
        "tool_use",
    }
)
"""Types of blocks that an answer may hold, beside results of the vendor's tools."""


def strict(reply: Reply) -> Callable[[Received], Answer]:
    """Return a reply that refuses what the API refuses."""

    def answer(asked: Received) -> Answer:
        broken = list(broken_rules(asked))
        if broken:
            return fault("invalid_request_error", "; ".join(broken), status=400)
        return reply if isinstance(reply, Answer) else reply(asked)

    return answer


def broken_rules(asked: Received) -> Iterator[str]:
    """Yield what is wrong with a request."""
    body = asked.json
    if asked.headers["anthropic-version"] >= "2026-10-21":
        yield from (
            f"{name}: Extra inputs are not permitted" for name in ("temperature", "top_p", "top_k") if name in body
        )
    if "max_tokens" not in body:
        yield "max_tokens: Field required"
    marks = str(body).count("'cache_control'")
    if marks > 4:
        yield f"a maximum of 4 blocks with cache_control may be provided, found {marks}"
    messages = body["messages"]
    yield from broken_by_turns(anthropic_turns(body))
    if any(block["type"] in ("tool_use", "tool_result") for message in messages for block in message["content"]):
        yield from [] if body.get("tools") else ["requests which include tool_use or tool_result must define tools"]
    for number, message in enumerate(messages):
        before = messages[number - 1] if number else {"role": "assistant", "content": []}
        after = messages[number + 1]["role"] if number + 1 < len(messages) else "assistant"
        for problem in _broken(message, before, after):
            yield f"messages.{number}: {problem}"


def _broken(message: dict[str, Any], before: dict[str, Any], after: str) -> Iterator[str]:
    role, blocks = message["role"], message["content"]
    if not blocks:
        yield "all messages must have non-empty content"
    for block in blocks:
        if block["type"] == "text" and not block["text"].strip():
            yield "text content blocks must contain non-whitespace text"
        for given in (block.get("id"), block.get("tool_use_id")):
            if given is not None and not re.fullmatch(r"[a-zA-Z0-9_-]+", given):
                yield f"{given!r} should match pattern '^[a-zA-Z0-9_-]+$'"
    if role == "system":
        if before["role"] != "user" or after != "assistant":
            yield "a system message must follow a user message, and be last or followed by an assistant turn"
    elif role == before["role"]:
        yield "two messages of one role"
    elif role == "assistant":
        yield from _broken_answer(blocks)
    else:
        yield from _broken_question(blocks)


def _broken_answer(blocks: list[dict[str, Any]]) -> Iterator[str]:
    yield from (
        f"{block['type']!r} blocks are not permitted within assistant turns"
        for block in blocks
        if block["type"] not in OWN_BLOCKS and not block["type"].endswith("_tool_result")
    )
    yield from (
        "signature: Field required" for block in blocks if block["type"] == "thinking" and not block.get("signature")
    )
    if blocks and blocks[-1]["type"].endswith("thinking"):
        yield "the final block in an assistant message cannot be `thinking`"


def _broken_question(blocks: list[dict[str, Any]]) -> Iterator[str]:
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if [block["type"] == "tool_result" for block in blocks[: len(results)]] != [True] * len(results):
        yield "results of tools come before all else"
    if any(block.get("citations") for block in blocks if block["type"] == "text"):
        yield "citations: Extra inputs are not permitted"
