"""`pellucid demo` through the adapters, at local servers that speak the vendors' protocols."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import anthropic_wire, openai_wire
from support.processes import PATIENCE, python
from support.vendor_server import answer_json, vendor_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.vendor_server import Answer, Received

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
ANSWER = "The latest commit is about models."

VENDORS = ("OPENAI_", "ANTHROPIC_", "OTEL_", "PELLUCID_")


def decide(asked: str) -> list[tuple[str, dict[str, Any], str]]:
    """Return the tool calls that the demo's own script would make; none when the tools have answered."""
    repository = re.search(r"The git repository is at ([^\"]+)\.", asked)
    assert repository is not None
    if "call_1" not in asked:
        log = {"repo_path": repository[1], "max_count": 20}
        return [("git_log", log, "call_1"), ("get_current_time", {"timezone": "UTC"}, "call_2")]
    if "call_3" not in asked:
        return [("count_words", {"text": "a b"}, "call_3"), ("top_words", {"text": "a b", "count": 3}, "call_4")]
    return []


def as_anthropic(asked: Received) -> Answer:
    """Answer as Anthropic does."""
    assert asked.path == "/v1/messages"
    calls = [anthropic_wire.tool_use(name, given, call) for name, given, call in decide(asked.body.decode())]
    if calls:
        return answer_json(anthropic_wire.message(*calls, stop="tool_use"))
    return answer_json(anthropic_wire.message(anthropic_wire.text(ANSWER)))


def as_openai(asked: Received) -> Answer:
    """Answer as a server that is compatible with OpenAI's Chat Completions."""
    assert asked.path == "/v1/chat/completions"
    calls = [openai_wire.call(name, json.dumps(given), call) for name, given, call in decide(asked.body.decode())]
    if calls:
        return answer_json(openai_wire.completion({"content": None, "tool_calls": calls}, "tool_calls"))
    return answer_json(openai_wire.completion({"content": ANSWER}))


def run_demo(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end, with these variables and no others of vendors."""
    environment: Mapping[str, str] = {name: value for name, value in os.environ.items() if not name.startswith(VENDORS)}
    script = "import sys; from pellucid.cli import main; sys.exit(main())"
    return subprocess.run(
        python("-c", script, "demo", "--no-color", "--port", "0", *options),
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(
    ("variable", "path", "reply", "model"),
    [
        ("OPENAI_BASE_URL", "/v1", as_openai, "gpt-6-luna"),
        ("ANTHROPIC_BASE_URL", "", as_anthropic, "claude-haiku-5-5"),
    ],
)
def test_a_server_in_the_environment_is_asked(variable: str, path: str, reply: Any, model: str) -> None:
    """The tree is that of the script's demo, with the model's name; and it is said why this model is asked."""
    with vendor_server() as server:
        server.always(reply)
        ran = run_demo(**{variable: f"{server.url}{path}", "ANTHROPIC_API_KEY": "key-1"})
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert ran.stderr == ""
    assert f"because {variable} is set" in " ".join(ran.stdout.split())
    assert ANSWER in ran.stdout
    tree = ran.stdout[ran.stdout.rindex("invoke_agent") : ran.stdout.index(ANSWER)]
    for provider in ("git", "time", "catalogue"):
        assert tree.count(f"discover_tools {provider}") == 3
    assert tree.count("compose_request") == 3
    assert tree.count(f"chat {model}") == 3
    for tool in ("git_log", "get_current_time", "count_words", "top_words"):
        assert tree.count(f"execute_tool {tool}") == 1
    assert len(server.requests) == 3


def test_a_key_alone_is_not_spent() -> None:
    """The script answers, and what would ask a real model is said."""
    ran = run_demo(OPENAI_API_KEY="key-1")
    assert ran.returncode == 0, ran.stderr
    shown = " ".join(ran.stdout.split())
    assert "a script that repeats the results of the tools" in shown
    assert "OPENAI_API_KEY is set: pellucid demo --model openai:gpt-6-luna" in shown


def test_a_model_that_fails_is_said() -> None:
    """With the server's words, and without a traceback."""
    with vendor_server() as server:
        server.always(anthropic_wire.fault("authentication_error", "No such key.", status=401))
        ran = run_demo("--model", "anthropic:claude-haiku-5-5", ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="k")
    assert ran.returncode == 1
    assert "HTTP 401, request req_1: No such key." in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_model_that_cannot_be_made_is_said() -> None:
    """Before anything is started."""
    ran = run_demo("--model", "groq:llama")
    assert ran.returncode != 0
    assert "GROQ_API_KEY" in ran.stderr
    assert "Traceback" not in ran.stderr
