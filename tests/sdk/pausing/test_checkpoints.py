from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    BlobPart,
    ConfigError,
    Decision,
    FilePart,
    Message,
    ModelResponse,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolResult,
    UriPart,
    dump_messages,
    load_messages,
    tool,
)
from pellucid.approvals import FileClaims
from pellucid.approvals.checkpoint import to_text
from pellucid.errors import AlreadyResumed, CheckpointError
from pellucid.messages import ServerToolCall, ServerToolResult
from pellucid.testing import FunctionModel, ScriptedModel
from support.runs import within

if TYPE_CHECKING:
    from pathlib import Path

    from pellucid.types import JSONObject

pytestmark = pytest.mark.anyio

CALL = ToolCall("deploy", {"to": "prod"}, "d1")


@tool(needs_approval=True)
async def deploy(to: str) -> str:
    """Deploy."""
    return f"deployed to {to}"


def agent(*steps: Any, name: str = "ops") -> Agent:
    """Return an agent whose tool needs approval."""
    return Agent(name, model=ScriptedModel(*steps), tools=[deploy])


async def waiting() -> JSONObject:
    """Return a checkpoint."""
    checkpoint = (await within(agent(CALL).run("x"))).checkpoint
    assert checkpoint is not None
    return checkpoint


RESULT = {"type": "tool_call_response", "response": "x"}


def with_call(kept: JSONObject, **more: Any) -> list[Any]:
    """Return the messages with one more call in the last."""
    *before, last = kept["messages"]
    return [*before, last | {"parts": [*last["parts"], last["parts"][0] | more]}]


def asked(kept: JSONObject, *changes: JSONObject) -> list[Any]:
    """Return the approval as often as there are changes, with these."""
    return [kept["approvals"][0] | change for change in changes]


def many_times(kept: JSONObject, depth: int) -> JSONObject:
    """Return a checkpoint nested in itself."""
    made = kept
    for _ in range(depth):
        made = kept | {"nested": {"d1": made}}
    return made


def approved(checkpoint: JSONObject) -> list[Decision]:
    """Return decisions that approve of everything."""
    return [Decision(each["approval_id"], True) for each in checkpoint["approvals"]]


async def test_a_checkpoint_is_plain_json_that_is_independent_of_the_run() -> None:
    """It can be kept as text, and what happens to the result does not change it."""
    result = await within(agent(ToolCall("deploy", {"to": "prod"}, "d1")).run("x"))
    assert result.checkpoint is not None
    text = json.dumps(result.checkpoint)
    assert result.checkpoint["version"] == 1
    assert result.checkpoint["approvals"][0]["arguments"] == {"to": "prod"}
    result.approvals[0].arguments["to"] = "moon"
    assert json.dumps(result.checkpoint) == text


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda kept: "nonsense", "not a checkpoint"),
        (lambda kept: {}, "not a checkpoint"),
        (lambda kept: kept | {"version": 3}, "has version 3, and this release of Pellucid reads versions 1 to 2"),
        (lambda kept: kept | {"id": "../../etc/passwd"}, "the checkpoint is damaged"),
        (lambda kept: kept | {"iteration": "many"}, "the checkpoint is damaged: iteration"),
        (lambda kept: {name: value for name, value in kept.items() if name != "approvals"}, "or nothing to wait for"),
        (lambda kept: kept | {"messages": []}, "the checkpoint is damaged"),
        (lambda kept: kept | {"messages": [{"role": "king", "parts": []}]}, r"messages\[0\]: the role is not one of"),
        (lambda kept: kept | {"messages": [{"role": "user", "parts": [{"type": "x"}]}]}, r"parts\[0\]: the type is"),
        (lambda kept: kept | {"results": [{"type": "text", "content": 7}]}, r"results\[0\].content"),
        (lambda kept: kept | {"nested": {"d1": {"version": 1}}}, "the checkpoint is damaged"),
        (lambda kept: kept | {"agent": "other"}, "is for agent 'other'; agent 'ops' cannot resume it"),
        (lambda kept: kept | {"iteration": 0}, "a counter is out of range"),
        (lambda kept: kept | {"tool_calls": -1}, "a counter is out of range"),
        (lambda kept: kept | {"messages": kept["messages"][:1]}, "its last message is not a model's answer"),
        (lambda kept: kept | {"messages": with_call(kept, id=None)}, "its last message is not a model's answer"),
        (lambda kept: kept | {"messages": with_call(kept, id="d1")}, "its last message is not a model's answer"),
        (lambda kept: kept | {"messages": with_call(kept, id="d2")}, "its calls do not match"),
        (lambda kept: kept | {"approvals": asked(kept, {"tool_call_id": "d2"})}, "its calls do not match"),
        (lambda kept: kept | {"approvals": asked(kept, {"tool_name": "drop"})}, "is for another tool than its call"),
        (lambda kept: kept | {"approvals": asked(kept, {}, {})}, "its approvals do not match"),
        (lambda kept: kept | {"approvals": asked(kept, {}, {"approval_id": "b"})}, "its calls do not match"),
        (lambda kept: kept | {"results": [RESULT | {"id": "d1"}]}, "its calls do not match"),
        (lambda kept: kept | {"results": [RESULT | {"id": "d9"}]}, "its calls do not match"),
        (lambda kept: kept | {"results": [{"type": "text", "content": "x"}]}, "its calls do not match"),
        (lambda kept: kept | {"nested": {"d1": kept}, "approvals": asked(kept, {"approval_id": "b"})}, "its approvals"),
        (lambda kept: kept | {"nested": {"d9": kept}}, "its calls do not match"),
        (lambda kept: many_times(kept, 2000), "it is nested too deeply"),
    ],
)
async def test_what_is_no_checkpoint_of_this_agent_is_refused(change: Any, text: str) -> None:
    """The error says what is wrong with it; nothing runs."""
    kept = await waiting()
    with pytest.raises(CheckpointError, match=text):
        await within(agent("never").resume(change(kept), decisions=approved(kept)))


@pytest.mark.parametrize("value", [object(), float("nan"), float("inf"), ["\ud800", float("nan")]])
async def test_a_conversation_that_is_not_json_cannot_wait(value: Any) -> None:
    """A model of one's own may put anything into a message; the run fails with what it is, not later elsewhere."""
    message = Message("assistant", [TextPart("hm", vendor={"mine": {"handle": value}}), CALL])
    broken = Agent("ops", model=FunctionModel(lambda request: ModelResponse(message=message)), tools=[deploy])
    with pytest.raises(CheckpointError, match="has paused, but cannot be saved in a checkpoint"):
        await within(broken.run("x"))


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), "\ud800", {"a": ["\ud800"]}])
def test_a_step_of_a_journal_is_strict_json(value: Any) -> None:
    """PostgreSQL refuses NaN in JSON; a number that is not finite becomes a text."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    read = json.loads(to_text({"value": value}), parse_constant=refuse)["value"]
    assert read == ({"nan": "NaN", "-inf": "-Infinity"}[str(value)] if isinstance(value, float) else value)


def test_a_step_with_half_a_character_and_without_a_number_is_refused() -> None:
    """Only an escape holds the one, and no JSON the other."""
    with pytest.raises(CheckpointError, match="not JSON"):
        to_text({"text": "\ud800", "number": float("nan")})


async def test_processes_that_share_a_directory_resume_a_run_once(tmp_path: Path) -> None:
    """Two processes that start at the same time with one checkpoint: one goes on, the other says that it is late."""
    kept = await waiting()
    (tmp_path / "checkpoint.json").write_text(json.dumps(kept))
    script = tmp_path / "resume.py"
    script.write_text(
        "import json, sys\n"
        "from pellucid import Agent, Decision, tool\n"
        "from pellucid.approvals import FileClaims\n"
        "from pellucid.errors import AlreadyResumed\n"
        "from pellucid.testing import ScriptedModel\n"
        "kept = json.load(open('checkpoint.json'))\n"
        "def deploy(to: str) -> str:\n"
        "    open('deployed', 'a').write(to)\n"
        "    return 'deployed'\n"
        "tools = [tool(needs_approval=True, description='Deploy.')(deploy)]\n"
        "agent = Agent('ops', model=ScriptedModel('done'), tools=tools)\n"
        "decisions = [Decision(each['approval_id'], True) for each in kept['approvals']]\n"
        "try:\n"
        "    agent.resume_sync(kept, decisions=decisions, claims=FileClaims('claims'))\n"
        "    print('went on')\n"
        "except AlreadyResumed:\n"
        "    print('late')\n"
    )
    said: list[bytes] = []

    async def resume() -> None:
        said.append((await anyio.run_process([sys.executable, str(script)], cwd=tmp_path)).stdout.strip())

    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(resume)
    assert sorted(said) == [b"late", b"went on"]
    assert (tmp_path / "deployed").read_text() == "prod"
    with pytest.raises(AlreadyResumed):
        await within(agent().resume(kept, decisions=approved(kept), claims=FileClaims(tmp_path / "claims")))


async def test_a_claim_that_fails_leaves_the_run_as_it_is() -> None:
    """A directory or database that cannot be reached must not cost an approval."""

    class Down:
        async def claim(self, checkpoint_id: str) -> bool:
            raise OSError("no space left on device")

    kept = await waiting()
    with pytest.raises(OSError, match="no space left"):
        await within(agent().resume(kept, decisions=approved(kept), claims=Down()))
    assert (await within(agent("done").resume(kept, decisions=approved(kept)))).output == "done"


def test_messages_survive_as_json() -> None:
    """Every kind of part comes back as it was, with what a vendor wants returned, and a result made of parts."""
    vendor = {"anthropic": {"signature": "abc", "nested": [1, {"a": None}]}}
    blob = BlobPart(content="aGk=", modality="image", mime_type="image/png")
    messages = (
        Message("system", "Be kind."),
        Message("user", [TextPart("see"), blob, FilePart(file_id="f1", modality="document")]),
        Message("user", [UriPart(uri="https://example.com/a.png", modality="image")]),
        Message(
            "assistant",
            [
                ReasoningPart("hm", vendor=vendor),
                ServerToolCall(name="web_search", server_tool_call={"query": "x"}, id="s1"),
                ServerToolResult(server_tool_call_response={"hits": []}, id="s1", vendor=vendor),
                TextPart("done", vendor=vendor),
                ToolCall("look", {"a": [1, 2.5, None, "ü"]}, "c1", vendor=vendor),
                ToolCall("raw", "{not json", "c2"),
                ToolCall("bare"),
            ],
            finish_reason="tool_call",
        ),
        Message(
            "tool",
            [
                ToolResult("c1", {"rows": [1]}, name="look"),
                ToolResult("c2", (TextPart("here"), blob), is_error=True, name="raw"),
                ToolResult("c3", None),
            ],
        ),
    )
    assert load_messages(json.loads(json.dumps(dump_messages(messages)))) == messages


@pytest.mark.parametrize("data", [None, {}, "x", [7], [{"role": "user"}], [{"role": "user", "parts": [{}]}]])
def test_what_are_no_messages_is_refused(data: object) -> None:
    """The error says where."""
    with pytest.raises(ConfigError, match="messages"):
        load_messages(data)
