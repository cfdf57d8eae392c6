"""Options of agents and runs: mistakes are errors at run time and for type checkers."""

from __future__ import annotations

import inspect
from typing import Any, Literal, assert_type

import pytest

from pellucid import Agent, AgentOptions, Decision, Identity, RunOptions, RunResult, tool
from pellucid.errors import CheckpointError
from pellucid.options import ResumeOptions
from pellucid.testing import ScriptedModel

pytestmark = pytest.mark.usefixtures("quiet_opentelemetry")


def agent(*texts: str) -> Agent:
    """Return an agent."""
    return Agent("a", model=ScriptedModel(*texts))


def test_an_agent_without_a_model_is_refused() -> None:
    """`Agent` without a model raises the `TypeError` of a missing keyword."""
    with pytest.raises(TypeError, match=r"Agent\(\) missing 1 required keyword-only argument: 'model'"):
        Agent("a")  # type: ignore[call-overload]


def test_an_unknown_option_is_refused_by_its_name() -> None:
    """Agents, tools and sync entry points refuse an unknown option by its name."""
    with pytest.raises(
        TypeError, match=r"Agent\(\) got an unexpected keyword argument 'modle'. Did you mean 'model'\?"
    ):
        Agent("a", model=ScriptedModel(), modle=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"tool\(\) got an unexpected keyword argument 'approval'. .*'needs_approval'"):
        tool(approval=True)  # type: ignore[call-overload]
    made = agent()
    with pytest.raises(TypeError, match=r"Agent.run_sync\(\) got an unexpected keyword argument 'claims'"):
        made.run_sync("x", claims=None)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"Agent.stream\(\) got an unexpected keyword argument 'dep'"):
        made.stream("x", dep=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"Agent.resume_sync\(\) got an unexpected keyword argument 'history'"):
        made.resume_sync({}, history=())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"Agent.resume_stream\(\) got an unexpected keyword argument 'decision'"):
        made.resume_stream({}, decision=())  # type: ignore[call-overload]


@pytest.mark.parametrize("decisions", [[True], {"a": True}, "a", Decision("a", approved=True)], ids=repr)
def test_what_are_no_decisions_is_refused(decisions: Any) -> None:
    """Decisions and results of another type are refused with the class that they must have."""
    with pytest.raises(CheckpointError, match=r"^decisions=.* is not a sequence of Decision objects; .*`approvals`"):
        agent().resume_sync({}, decisions=decisions)
    with pytest.raises(CheckpointError, match=r"^results=.* is not a sequence of ExternalResult objects; .*`external`"):
        agent().resume_sync({}, results=decisions)


@pytest.mark.anyio
async def test_an_unknown_option_is_refused_by_async_entry_points() -> None:
    """`run` and `resume` refuse an unknown option when they are awaited."""
    with pytest.raises(TypeError, match=r"Agent.run\(\) got an unexpected keyword argument 'historie'"):
        await agent().run("x", historie=())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"Agent.resume\(\) got an unexpected keyword argument 'decision'"):
        await agent().resume({}, decision=())  # type: ignore[call-overload]


def test_options_have_types() -> None:
    """Type checkers report an option of a wrong type, and infer the type of the answer from `output`."""

    def checked() -> None:
        Agent("a", model=1)  # type: ignore[call-overload]
        Agent("a", model=ScriptedModel(), collisions="never")  # type: ignore[call-overload]
        agent().run_sync("x", identity="ann")  # type: ignore[call-overload]
        assert_type(Agent("a", model=ScriptedModel(), output=int).run_sync("x"), RunResult[int])
        assert_type(Agent("a", model=ScriptedModel(), output=int | None).run_sync("x"), RunResult[int | None])
        choice = Agent("a", model=ScriptedModel(), output=Literal["yes", "no"])
        assert_type(choice.run_sync("x", identity=Identity(principal="ann")), RunResult[Literal["yes", "no"]])

    assert callable(checked)


def test_options_can_be_kept_in_a_dictionary() -> None:
    """Options may be kept in dictionaries of the types `AgentOptions` and `RunOptions`."""
    options: AgentOptions = {"model": ScriptedModel("one", "two"), "description": "An agent."}
    same: RunOptions = {"identity": Identity(tenant="t"), "history": ()}
    made: Agent[Any, Any] = Agent("a", **options)
    assert [made.run_sync("x", **same).output for _ in range(2)] == ["one", "two"]


@pytest.mark.parametrize("options", [AgentOptions, RunOptions, ResumeOptions])
def test_docstrings_name_every_option(options: Any) -> None:
    """The docstrings of `Agent`, `run` and `resume` name each of their options."""
    described = {AgentOptions: Agent, RunOptions: Agent.run, ResumeOptions: Agent.resume}[options]
    assert [name for name in options.__annotations__ if f"`{name}`" not in str(described.__doc__)] == []


def test_the_signatures_show_the_options() -> None:
    """The signatures show each option with its type, and only required ones without a default."""
    shown = inspect.signature(Agent).parameters
    assert list(shown)[:3] == ["name", "output", "model"]
    assert set(shown) == {"name", "output", *AgentOptions.__annotations__}
    assert [name for name, item in shown.items() if item.default is item.empty] == ["name", "model"]
    assert str(shown["collisions"]) == "collisions: 'Collisions' = 'error'"
    run, resume = inspect.signature(Agent.run), inspect.signature(Agent.resume)
    assert set(run.parameters) == {"self", "input", "deps", *RunOptions.__annotations__}
    assert set(resume.parameters) == {"self", "checkpoint", "deps", *ResumeOptions.__annotations__}
    assert "history: Sequence[Message] = ()" in str(run).replace("'", "")
    assert "model: Model | str = Ellipsis" in str(inspect.signature(Agent.override)).replace("'", "")


def test_the_defaults_that_signatures_show_are_those_that_hold() -> None:
    """The defaults in the signature of `Agent` are those that hold without them."""
    model = ScriptedModel("x")
    defaults: Any = {name: item.default for name, item in inspect.signature(Agent).parameters.items()}
    del defaults["name"], defaults["model"]
    plain, given = Agent("a", model=model)._setup, Agent("a", model=model, **defaults)._setup
    assert (given.catalogs.is_lazy, given.catalogs.collisions) == (plain.catalogs.is_lazy, plain.catalogs.collisions)
    for field in (
        "instructions",
        "settings",
        "tools",
        "limits",
        "permissions",
        "pin",
        "is_warm",
        "skills",
        "reliability",
    ):
        assert getattr(given, field) == getattr(plain, field), field
