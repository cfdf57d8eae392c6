"""Every option is checked when the agent is made: one error names the option, its value and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Agent, ConfigError, DiscoveryProvider, Identity, Limits, Reliability, Skill
from pellucid.mcp import MCPProvider
from pellucid.testing import FakeHub, ScriptedModel

if TYPE_CHECKING:
    from pathlib import Path


def abs_of(number: int) -> int:
    """Return the absolute value of a number."""
    return abs(number)


SERVER = MCPProvider.stdio("server", id="time")


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"limits": {"timeout": 5}}, ("limits={'timeout': 5}", "give Limits(timeout=5)")),
        ({"limits": 5}, ("limits=5", "give Limits(...)")),
        ({"skills": ["x"]}, ("skills[0]='x'", "give Skill(")),
        ({"skills": 5}, ("skills=5", "give a list of skills")),
        ({"policy": "allow"}, ("policy='allow'", "lambda _: 'allow'")),
        ({"policy": True}, ("policy=True", "give one of a PermissionRequest")),
        ({"tools": [SERVER]}, ("tools[0]=", "give it as providers=[...]")),
        ({"tools": [Agent("b", model=ScriptedModel())]}, ("tools[0]=Agent('b'", "as_tool()")),
        ({"tools": [Skill("s", "About.", "Do it.")]}, ("tools[0]=", "give it as skills=[...]")),
        ({"providers": [FakeHub()]}, ("providers[0]=", "give DiscoveryProvider(hub, id='...')")),
        ({"providers": [DiscoveryProvider(FakeHub(), id="hub"), print]}, ("providers[1]=", "Agent(tools=...)")),
        ({"providers": SERVER}, ("providers=", "give a list of tool providers")),
        ({"instructions": 42}, ("instructions=42", "give one, a function of the context, or a list of both")),
        ({"instructions": ["x", 42]}, ("instructions[1]=42", "neither a text nor a function")),
        ({"description": ["A"]}, ("description=['A']", "give one")),
        ({"settings": "hot"}, ("settings='hot'", "give one, such as {'temperature'")),
        ({"reliability": []}, ("reliability=[]", "Reliability([Rule(...), ...])")),
        ({"telemetry": True}, ("telemetry=True", "give what configure() returns")),
        ({"collisions": "never"}, ("collisions='never'", "use one of 'error'")),
        ({"registry_mode": "slow"}, ("registry_mode 'slow'", "use 'full' or 'lazy'")),
        ({"pin": "no"}, ("pin='no'", "True or False")),
        ({"warm": 1}, ("warm=1", "True or False")),
    ],
)
def test_a_value_that_an_option_does_not_take_is_refused(options: Any, names: tuple[str, ...]) -> None:
    """Before any run, and in `Agent.override`, too."""
    with pytest.raises(ConfigError) as refused:
        Agent("a", model=ScriptedModel(), **options)
    assert [name for name in ("Agent 'a': ", *names) if name not in str(refused.value)] == []
    agent = Agent("a", model=ScriptedModel())
    with pytest.raises(ConfigError) as refused, agent.override(**options):
        pass
    assert [name for name in ("Agent 'a': ", *names) if name not in str(refused.value)] == []


def test_options_that_are_none_are_those_that_are_not_given() -> None:
    """Of all options whose type says so."""
    options: Any = dict.fromkeys(
        ("instructions", "settings", "limits", "policy", "telemetry", "description", "prices", "reliability")
    )
    made, plain = Agent("a", model=ScriptedModel(), **options)._setup, Agent("a", model=ScriptedModel())._setup
    assert (made.instructions, made.limits, made.permissions, made.settings, made.reliability) == (
        plain.instructions,
        plain.limits,
        plain.permissions,
        plain.settings,
        plain.reliability,
    )


def test_values_that_options_take_are_taken() -> None:
    """Given as iterators, too."""
    agent = Agent(
        "a",
        model=ScriptedModel("done"),
        tools=iter([abs_of]),  # type: ignore[call-overload]  # works, too
        skills=(skill for skill in [Skill("s", "About.", "Do it.")]),
        limits=Limits(timeout=5),
        reliability=Reliability(),
        policy=lambda _: "allow",
    )
    assert agent.run_sync("go").output == "done"


def test_a_command_with_its_arguments_is_refused(tmp_path: Path) -> None:
    """With the call that is right; a program whose path has a space is none."""
    with pytest.raises(ConfigError) as refused:
        MCPProvider.stdio("uvx mcp-server-time", id="time")
    assert "command='uvx mcp-server-time'" in str(refused.value)
    assert "MCPProvider.stdio('uvx', 'mcp-server-time', id='time')" in str(refused.value)
    program = tmp_path / "my server"
    program.touch()
    assert MCPProvider.stdio(str(program), id="time").id == "time"
    assert MCPProvider.stdio("my server", id="time", cwd=tmp_path).id == "time"


@pytest.mark.parametrize("output", [{"a": 1}, {}, {"type": "int"}])
def test_an_output_that_is_a_dictionary_is_refused(output: Any) -> None:
    """Pydantic would take one for its own description of a type."""
    with pytest.raises(ConfigError) as refused:
        Agent("a", model=ScriptedModel(), output=output)
    assert f"Agent(output={output!r})" in str(refused.value)
    assert "give a type" in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"identity": "ann"}, "identity='ann' of a run is not an Identity; give Identity(principal='ann')"),
        ({"identity": 7}, "identity=7 of a run is not an Identity; give Identity(principal=...)"),
        ({"signal": 1}, "signal=1 of a run is not a CancelToken; give CancelToken()"),
        ({"input": None}, "input=None of a run is not a text, a Message, or a sequence with at least one Message"),
        ({"input": 7}, "input=7 of a run is not a text, a Message, or a sequence with at least one Message"),
    ],
)
def test_arguments_of_a_run_are_checked(options: Any, message: str) -> None:
    """Before it starts, streamed or not, and in a session, which then takes the next run."""
    options = {"input": "Hi", **options}
    model = ScriptedModel("Hello.")
    agent = Agent("a", model=model)
    session = agent.session("x")
    calls: list[Any] = [agent.run_sync, agent.stream, *([session.run_sync] if "identity" not in options else [])]
    for call in calls:
        with pytest.raises(ConfigError) as refused:
            call(**options)
        assert str(refused.value) == message
    assert model.requests == []
    assert session.run_sync("Hi").output == "Hello."


def test_an_identity_is_checked() -> None:
    """Numbers of a database would name another conversation than their texts."""
    for field in ("tenant", "principal", "conversation_id"):
        with pytest.raises(ConfigError, match=rf"Identity\({field}=7\): must be a text, or None"):
            Identity(**{field: 7})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="identity='ann' of a session is not an Identity"):
        Agent("a", model=ScriptedModel()).session("x", identity="ann")  # type: ignore[arg-type]
