"""Recorded histories: an unchanged message of an earlier run is not redacted again, and a changed one is."""

from __future__ import annotations

import json
import sys
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, CapturePolicy, Message, TelemetryOptions, TextPart, ToolCall, ToolResult, semconv
from pellucid.telemetry.capture import DEFAULT_REDACTORS
from pellucid.testing import FunctionModel
from support.runs import attributes, within

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

TOKEN = "ghp_" + "a1B2c3D4e5F6" * 3


def history(turns: int, first: str = "x", about: str = "it") -> list[Message]:
    """Return a conversation of a number of turns, with a note in the first call."""
    messages: list[Message] = []
    for turn in range(turns):
        call = ToolCall("look", {"note": first if not turn else f"note {turn}", "about": about}, f"call_{turn}")
        messages += [
            Message("user", f"question {turn} about {about}"),
            Message("assistant", [call]),
            Message("tool", [ToolResult(f"call_{turn}", {"rows": [turn, about]}, name="look")]),
            Message("assistant", f"answer {turn} about {about}"),
        ]
    return messages


def agent(**options: Any) -> Agent[Any, Any]:
    """Return an agent that answers."""
    return Agent("a", model=FunctionModel(lambda _: "ok"), **options)


def recorded(telemetry: Captured, run: int) -> list[Any]:
    """Return the messages that a run's `chat` span has."""
    return json.loads(attributes(telemetry.find("chat")[run])[semconv.INPUT_MESSAGES])  # type: ignore[no-any-return]


async def calls_to_redact(agent: Agent[Any, Any], messages: Sequence[Message]) -> int:
    """Run an agent with a history, and return the number of calls to redact."""
    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename.endswith("/telemetry/sanitize.py")

    sys.setprofile(count)
    try:
        await within(agent.run("go", history=messages))
    finally:
        sys.setprofile(None)
    return calls


async def test_a_history_is_redacted_once(telemetry: Captured) -> None:
    """A history with equal messages is redacted once, even if its objects are new."""
    about = uuid.uuid4().hex
    first = await calls_to_redact(agent(), history(200, about=about))
    second = await calls_to_redact(agent(), history(200, about=about))
    assert second < 0.1 * first
    assert recorded(telemetry, 0) == recorded(telemetry, 1)
    digests = [attributes(span)[semconv.REQUEST_DIGEST] for span in telemetry.find("compose_request")]
    assert digests[0] == digests[1]


async def test_a_message_that_was_changed_is_redacted_anew(telemetry: Captured) -> None:
    """A changed message is redacted again, and its new content is recorded without the secret."""
    messages = history(8, "before")
    await within(agent().run("go", history=messages))
    arguments: Any = messages[1].tool_calls[0].arguments
    arguments["note"] = f"now {TOKEN}"
    await within(agent().run("go", history=messages))
    notes = [recorded(telemetry, run)[1]["parts"][0]["arguments"]["note"] for run in (0, 1)]
    assert notes[0] == "before"
    assert notes[1].startswith("now ")
    assert TOKEN not in notes[1]


async def test_policies_do_not_share_recordings(telemetry: Captured) -> None:
    """Each policy records a history in its own way."""
    messages = history(8, TOKEN)
    for policy in (CapturePolicy("full"), CapturePolicy(), CapturePolicy(max_bytes=256, max_span_bytes=4096)):
        await within(agent(telemetry=TelemetryOptions(capture=policy)).run("go", history=messages))
    full, masked, cut = (recorded(telemetry, run) for run in range(3))
    assert TOKEN in json.dumps(full)
    assert TOKEN not in json.dumps([masked, cut])
    assert len(json.dumps(cut)) < len(json.dumps(masked))


async def test_redactors_of_an_application_see_every_run(telemetry: Captured) -> None:
    """Redactors of an application see the history in every run."""
    hidden = "note 3"

    def redact(path: Sequence[str], value: Any) -> Any:
        return "[hidden]" if value == hidden else value

    policy = CapturePolicy(redactors=(*DEFAULT_REDACTORS, redact))
    messages = history(8)
    await within(agent(telemetry=TelemetryOptions(capture=policy)).run("go", history=messages))
    hidden = "note 4"
    await within(agent(telemetry=TelemetryOptions(capture=policy)).run("go", history=messages))
    notes = [
        [
            part["arguments"]["note"]
            for item in recorded(telemetry, run)
            for part in item["parts"]
            if "arguments" in part
        ]
        for run in (0, 1)
    ]
    assert [said.index("[hidden]") for said in notes] == [3, 4]


async def test_content_that_is_not_json_is_recorded(telemetry: Captured) -> None:
    """Content that is not JSON is recorded alike in two runs."""
    odd = [Message("user", "a"), Message("assistant", [ToolCall("look", {"object": object()}, "c")])]
    odd += [Message("tool", [ToolResult("c", (TextPart("lone \ud800"),), name="look")]), Message("assistant", "\ud800")]
    await within(agent().run("go", history=[*odd, *history(8)]))
    await within(agent().run("go", history=[*odd, *history(8)]))
    assert recorded(telemetry, 0) == recorded(telemetry, 1)
    assert recorded(telemetry, 0)[1]["parts"][0]["arguments"]["object"] == "[builtins.object]"
