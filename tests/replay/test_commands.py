"""`pellucid replay`, `pellucid test` and the marker `tape`, on a real store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from pellucid import PellucidError
from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid_commands.replay import replay, test
from pellucid_exporters import StoreReader
from support import anthropic_wire, openai_wire
from support.local_store import storing
from support.processes import PATIENCE, python, run_pytest
from support.vendor_server import Answer, Received, answer_json, vendor_server

AGENTS = '''
    """Agents of a shop."""

    from pellucid import Agent, DiscoveryProvider, Limits, ToolCall, tool
    from pellucid.testing import FakeHub, ScriptedModel


    @tool
    def refund(order: int) -> str:
        """Pay an order back."""
        raise ConnectionError(f"no route for order {order}")


    @tool
    def refund_all() -> str:
        """Pay everything back."""
        return "paid"


    HOSTILE = "It's \\"done\\"\\n\\u202e\\x1b[31m"
    hub = DiscoveryProvider(FakeHub([refund]), id="billing")


    def agent(name, *answers, instructions="Be brief.", hub=hub, **options):
        return Agent(name, model=ScriptedModel(*answers), providers=[hub], instructions=instructions, **options)


    @tool(name="refund")
    def new_refund(order: int, *, whole: bool = True) -> str:
        """Pay back."""
        return "paid"


    brief = agent("support", ToolCall("refund", {"order": 7}), "Refunded.")
    kind = agent("support", instructions="Be kind.")
    other = agent("support", ToolCall("refund", {"order": 8}), "Refunded.")
    strict = agent("support", policy=lambda request: "deny")
    warm = agent("support", settings={"temperature": 0.5})
    limited = agent("support", limits=Limits(max_iterations=1))
    renewed = agent("support", hub=DiscoveryProvider(FakeHub([new_refund, refund_all]), id="billing"))
    hostile = agent('shop "1"\\n\\'', HOSTILE)
    failing = agent("failing", ConnectionError("overloaded"))
    all_of_them = [hostile, failing]
'''
MAIN = "import sys; from pellucid.cli import main; sys.exit(main())"
BLOCKED = f"""
    import socket

    def refuse(*arguments, **options):
        raise AssertionError("the replay calls out")

    socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
    {MAIN}
"""


class Shop:
    """A folder with agents and a store. Attributes: runs: ids of the runs by the names of their agents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "store.db"
        (folder / "shop_agents.py").write_text(dedent(AGENTS).lstrip())
        with importable(folder) as agents, storing(self.store) as telemetry:
            for agent in (agents.brief, agents.hostile, agents.failing):
                with agent.override(telemetry=telemetry), suppress(PellucidError):
                    agent.run_sync("Please refund order 7.")
        self.runs = {row.agent: row.run_id for row in StoreReader(self.store).runs()}

    def call(self, command: Command, *arguments: str) -> int:
        """Run a command in this process; return the exit code."""
        parser = ArgumentParser()
        command.add_arguments(parser)
        with importable(self.folder):
            return command.run(parser.parse_args([*arguments, "--store", str(self.store)]))

    def start(self, *arguments: str, script: str = MAIN, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `pellucid` in a process of its own, in the folder."""
        return subprocess.run(
            python("-c", dedent(script), *arguments, "--store", str(self.store)),
            env={**os.environ, **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


@contextmanager
def importable(folder: Path) -> Iterator[Any]:
    """Import the agents of a folder, and forget them afterwards."""
    sys.path.insert(0, str(folder))
    try:
        yield __import__("shop_agents")
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("shop_agents", None)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Give a shop with three recorded runs."""
    return Shop(tmp_path_factory.mktemp("shop"))


def test_a_replay_that_is_the_same_calls_nothing(shop: Shop) -> None:
    """A replay of an unchanged agent exits with 0 and says that it is the same, without network."""
    ran = shop.start("replay", shop.runs["support"], "--agent", "shop_agents:brief", script=BLOCKED)
    assert ran.returncode == 0, ran.stderr
    first, second = ran.stdout.splitlines()
    assert first.startswith(f"same       8 boundaries of run {shop.runs['support']}, replayed in ")
    assert second == "completed  Refunded."


def test_the_first_difference_comes_first_as_a_diff(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed agent exits with 1; its first difference is shown with both sides, the others in a line each."""
    assert shop.call(replay.COMMAND, shop.runs["support"], "--agent", "shop_agents:kind") == 1
    shown = capsys.readouterr().out
    first, _, others = shown.partition("\n\nThen 1 more")
    assert "\n[1] chat scripted: instructions\n" in first
    assert '-     "content": "Be brief."' in first
    assert '+     "content": "Be kind."' in first
    assert "[2] compose_request: request" in others


@pytest.mark.parametrize(
    ("agent", "options", "expected"),
    [
        ("strict", (), ["[1] compose_request: policy", "  - refund"]),
        ("warm", (), ["[1] chat scripted: settings", "  + temperature: 0.5"]),
        ("limited", (), ["invoke_agent support: settings", "  + limits.max_iterations: 1"]),
        (
            "renewed",
            ("--live", "hub:billing"),
            [
                "[1] discover_tools billing: catalogue",
                "  + refund_all: Pay everything back.",
                "    refund:",
                "  -   description: Pay an order back.",
                "  +   description: Pay back.",
                '  +   parameters.properties.whole: {"default": true, "type": "boolean"}',
            ],
        ),
    ],
)
def test_differences_speak_names(
    shop: Shop, capsys: pytest.CaptureFixture[str], agent: str, options: tuple[str, ...], expected: list[str]
) -> None:
    """Differences name tools, settings, limits and denied tools in place of digests."""
    assert shop.call(replay.COMMAND, shop.runs["support"], "--agent", f"shop_agents:{agent}", *options) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[3 : 3 + len(expected)] == expected


def test_a_live_part_that_asks_for_something_else_stops(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """A live part that asks for something else stops; the arguments are shown beside the recorded ones."""
    options = (shop.runs["support"], "--agent", "shop_agents:other", "--live", "model")
    assert shop.call(replay.COMMAND, *options, "--json") == 1
    document = json.loads(capsys.readouterr().out)
    assert not document["same"]
    divergence = document["divergence"]
    assert (divergence["boundary"], divergence["what"]) == ("execute_tool refund", "arguments")
    assert (divergence["recorded"], divergence["replayed"]) == ({"order": 7}, {"order": 8})
    assert shop.call(replay.COMMAND, *options, "--on-divergence", "live") == 1
    shown = capsys.readouterr().out
    assert "+ order: 8" in shown
    assert "[2] chat scripted: input" in shown


def reply(asked: Received) -> Answer:
    """Call the tool as recorded, and then answer; Anthropic's model calls it for another order."""
    if asked.path.endswith("/messages"):
        return answer_json(anthropic_wire.message(anthropic_wire.tool_use("refund", {"order": 8}, "toolu_1")))
    if b"no route" in asked.body:
        return answer_json(openai_wire.completion({"content": "I could not refund it."}))
    return answer_json(openai_wire.completion({"tool_calls": [openai_wire.call("refund", '{"order": 7}', "call_9")]}))


def test_other_models_answer_in_place_of_the_recorded_one(shop: Shop) -> None:
    """`--models` prints a table of the recorded run and of each model, which get recorded results of tools."""
    with vendor_server() as server:
        server.always(reply)
        vendors = {
            "OPENAI_API_KEY": "key",
            "OPENAI_BASE_URL": f"{server.url}/v1",
            "ANTHROPIC_API_KEY": "key",
            "ANTHROPIC_BASE_URL": server.url,
        }
        models = "openai-chat:gpt-6-luna,anthropic:claude-haiku-5-5"
        table = shop.start("replay", shop.runs["support"], "--models", models, "--json", **vendors)
        text = shop.start("replay", shop.runs["support"], "--models", models, **vendors)
        single = shop.start("replay", shop.runs["support"], "--live", "model=openai-chat:gpt-6-luna", **vendors)
    recorded, openai, anthropic = json.loads(table.stdout)["models"]
    assert (recorded["model"], recorded["answer"]) == ("scripted (recorded)", "Refunded.")
    assert (openai["outcome"], openai["tool_calls"], openai["answer"]) == ("completed", 1, "I could not refund it.")
    assert openai["output_tokens"] > 0
    assert anthropic["outcome"] == "diverged"
    assert "execute_tool refund" in anthropic["answer"]
    assert [line.split()[:2] for line in text.stdout.splitlines()] == [
        ["MODEL", "OUTCOME"],
        ["scripted", "(recorded)"],
        ["openai-chat:gpt-6-luna", "completed"],
        ["anthropic:claude-haiku-5-5", "diverged"],
    ]
    assert table.returncode == text.returncode == single.returncode == 1
    assert "completed  I could not refund it." in single.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "there is no run 'nothing'"),
        (["RUN", "--live", "tool:search"], "use some of hub:billing, model, tool:refund"),
        (["RUN", "--live", "model=nobody:1"], "unknown model 'nobody:1'"),
        (["RUN", "--agent", "shop_agents:all_of_them"], "none of its agents is 'support'"),
        (["RUN", "--models", "openai:a", "--live", "model"], "exclude each other"),
    ],
    ids=["run", "part", "model", "agent", "both"],
)
def test_wrong_arguments_are_refused(shop: Shop, arguments: list[str], message: str) -> None:
    """An argument that does not exist raises ConfigError that names it."""
    given = [shop.runs["support"] if word == "RUN" else word for word in arguments]
    with pytest.raises(ConfigError, match=message):
        shop.call(replay.COMMAND, *given)


def test_a_tape_that_cannot_be_written_is_refused(shop: Shop) -> None:
    """A tape that cannot be written raises ConfigError with the place and the option."""
    with pytest.raises(ConfigError, match=r"written to \. \(Is a directory\); give --tape another path"):
        shop.call(test.COMMAND, shop.runs["support"], "--tape", ".")


def test_a_run_becomes_tests_that_pass(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded runs become tests with tapes that pass; a missing tape is named."""
    monkeypatch.chdir(shop.folder)
    for name, place in (("support", "brief"), ('shop "1"\n\'', "all_of_them"), ("failing", "all_of_them")):
        run_id = shop.runs[name]
        assert shop.call(test.COMMAND, run_id, "--agent", f"shop_agents:{place}") == 0
        written = capsys.readouterr()
        assert f"tests/tapes/{run_id[:12]}.jsonl" in written.err
        assert written.out.isascii()
        Path(f"test_{run_id}.py").write_text(written.out)
    tape = Path("tests", "tapes", f"{shop.runs['support'][:12]}.jsonl")
    assert shop.call(replay.COMMAND, str(tape)) == 0
    hand_written = f"""
        import pytest
        from pellucid_replay import replay

        @pytest.mark.anyio
        @pytest.mark.tape("tapes/{tape.name}")
        async def test_beside_the_test(tape):
            (await replay(None, tape)).check()

        @pytest.mark.tape("nowhere.jsonl")
        def test_missing(tape):
            pass
    """
    Path("tests", "test_by_hand.py").write_text(dedent(hand_written))
    ran = run_pytest(Path(), PYTHONPATH=os.pathsep.join([*filter(None, sys.path), "."]))
    assert "there is no tape" in ran.stdout
    assert "pellucid test RUN --tape nowhere.jsonl" in ran.stdout
    assert ran.stdout.splitlines()[-1].strip("= ").startswith("5 passed, 1 error in "), ran.stdout


def test_no_test_of_a_replay_that_differs(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No test is written of a replay that differs; the command gives the reason and exits with 1."""
    monkeypatch.chdir(tmp_path)
    assert shop.call(test.COMMAND, shop.runs["support"], "--agent", "shop_agents:kind") == 1
    written = capsys.readouterr()
    assert "instructions differ" in written.err
    assert written.out == ""
    assert list(tmp_path.iterdir()) == []
