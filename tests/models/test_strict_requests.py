"""`ScriptedModel` refuses the requests that vendors refuse, and says which rule is broken."""

from __future__ import annotations

from typing import Any

import pytest

from pellucid import Agent, Message, ModelError, ModelRequest, ToolCall, ToolDefinition, ToolResult
from pellucid.messages import BlobPart, ReasoningPart, ServerToolCall, TextPart
from pellucid.testing import ScriptedModel
from pellucid.testing.samples import HISTORY
from support.models import read

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

ASKED = Message("user", "hi")
CALLED = Message("assistant", [ToolCall("add", {}, "c1"), ToolCall("add", {}, "c2")])
FIRST, SECOND = ToolResult("c1", 1), ToolResult("c2", 2)
ANSWERED = Message("tool", [FIRST, SECOND])


def tool_named(name: str) -> ToolDefinition:
    """Return the definition of a tool."""
    return ToolDefinition(name=name, description="d", parameters={"type": "object"})


BROKEN = {
    "no messages": ([], "there is no message with content"),
    "blank": ([Message("user", " \n")], "there is no message with content"),
    "only a system message": ([Message("system", "Be brief.")], "there is no message with content"),
    "an answer first": ([Message("assistant", "Hello."), ASKED], "the conversation begins with an answer"),
    "an answer last": ([ASKED, Message("assistant", "Hello.")], "the conversation ends with an answer"),
    "no results": ([ASKED, CALLED], r"no result at the end of the calls 'c1', 'c2'"),
    "a result too few": ([ASKED, CALLED, Message("tool", [SECOND])], "no result at the end of the calls 'c1'"),
    "a question before the results": (
        [ASKED, CALLED, ASKED, ANSWERED],
        r"messages\[2\]: no result before it of the calls 'c1', 'c2'; messages\[3\]: a result without the call 'c1'",
    ),
    "a text between results": (
        [ASKED, CALLED, Message("user", [FIRST, TextPart("and")]), Message("tool", [SECOND])],
        r"messages\[2\]: no result before it of the calls 'c2'",
    ),
    "a result twice": (
        [ASKED, CALLED, ANSWERED, Message("tool", [FIRST])],
        r"messages\[3\]: a second result of .*'c1'",
    ),
    "a result without a call": ([ASKED, Message("tool", [FIRST])], r"messages\[1\]: a result without the call 'c1'"),
    "an id twice": ([ASKED, CALLED, ANSWERED, CALLED, ANSWERED], r"messages\[3\]: two calls have the id 'c1'"),
    "no id": ([ASKED, Message("assistant", [ToolCall("add")]), ASKED], r"messages\[1\]: a call has no id"),
    "a call by a user": ([Message("user", [ToolCall("add", {}, "c1")])], "a message of role 'user' has calls"),
    "a result by a model": ([ASKED, CALLED, Message("assistant", [FIRST, SECOND])], "role 'assistant' has results"),
    "a text of a tool": ([ASKED, CALLED, ANSWERED, Message("tool", "3")], "a message of role 'tool' has other content"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("messages", "rule"), BROKEN.values(), ids=BROKEN)
async def test_a_broken_conversation_is_refused(messages: list[Message], rule: str, stream: bool) -> None:
    """As a vendor refuses it: the error is one of the request, and the script does not go on."""
    model = ScriptedModel("done")
    request = ModelRequest(messages=messages)
    with pytest.raises(ModelError, match=rule) as caught:
        await (read(model, request) if stream else model.generate(request))
    assert (caught.value.error_kind, caught.value.error_type) == ("invalid_request", "invalid_request")
    assert (await model.generate(ModelRequest(messages=[ASKED]))).message.text == "done"


@pytest.mark.parametrize(
    ("names", "rule"),
    [(["a.b"], "named 'a.b'"), (["x" * 65], "1 to 64"), ([""], "named ''"), (["add", "add"], "two tools .* 'add'")],
)
async def test_a_bad_name_of_a_tool_is_refused(names: list[str], rule: str) -> None:
    """Names have the characters and the length that all vendors take, and are unique."""
    tools = [tool_named(name) for name in names]
    with pytest.raises(ModelError, match=rule):
        await ScriptedModel("done").generate(ModelRequest(messages=[ASKED], tools=tools))


VALID = {
    "everything": HISTORY,
    "results in two messages": [ASKED, CALLED, Message("tool", [SECOND]), Message("tool", [FIRST])],
    "results before a question": [ASKED, CALLED, Message("user", [SECOND, FIRST, TextPart("Go on.")])],
    "two questions": [ASKED, ASKED],
    "a blank text among others": [ASKED, Message("assistant", " "), ASKED],
    "only an image": [Message("user", [BlobPart(content="", modality="image")])],
    "a tool of the vendor": [
        ASKED,
        Message("assistant", [ReasoningPart("Hm."), ServerToolCall(name="search", server_tool_call={})]),
        ASKED,
    ],
}


@pytest.mark.parametrize("messages", VALID.values(), ids=VALID)
async def test_what_adapters_put_right_is_accepted(messages: Any) -> None:
    """Messages of one role in a row, and results in any order and number of messages, are no fault."""
    request = ModelRequest(messages=messages, tools=[tool_named("add")])
    assert (await ScriptedModel("done").generate(request)).message.text == "done"


async def test_a_run_from_a_broken_history_fails_as_with_a_vendor() -> None:
    """The error names the call without a result; a model that is not strict answers."""
    history = [ASKED, CALLED]
    with pytest.raises(ModelError, match=r"messages\[2\]: no result before it of the calls 'c1', 'c2'"):
        await Agent("a", model=ScriptedModel("done")).run("hi", history=history)
    lenient = ScriptedModel("done", strict=False)
    assert (await Agent("a", model=lenient).run("hi", history=history)).output == "done"
