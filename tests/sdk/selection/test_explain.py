"""`agent.explain`: the provider of a tool, and the reasons that keep the tool from the model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    DiscoveryContext,
    DiscoveryProvider,
    Identity,
    Limits,
    PermissionRequest,
    Skill,
    Tool,
    ToolCall,
    ToolRegistry,
    Verdict,
    combined,
    gated_tools,
    observe,
    skill_scoped_tools,
    static_tools,
)
from pellucid.errors import ToolNameCollision
from pellucid.testing import FakeHub, ScriptedModel
from support.clock import SOON, outlast
from support.runs import within

if TYPE_CHECKING:
    from pellucid import Policy, ToolProvider
    from pellucid.providers import ExplainContext
    from pellucid.selection import Explanation
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def nothing(arguments: Any, ctx: object) -> str:
    """Do nothing."""
    return "done"


def made(name: str, **options: Any) -> Tool:
    """Return a tool."""
    return Tool(name=name, run=nothing, **options)


read, write = made("read"), made("write")


def agent(policy: Policy | None = None, **options: Any) -> Agent:
    """Return an agent."""
    options = options if "providers" in options else {"tools": [read, write], **options}
    return Agent("a", model=ScriptedModel(), policy=policy, **options)


def hub(name: str, *tools: Tool, **options: Any) -> ToolProvider:
    """Return a provider of tools."""
    return DiscoveryProvider(FakeHub(list(tools), **options), id=name)


def says(found: Explanation, *texts: str) -> bool:
    """Return True if the reasons contain these texts, one each."""
    return len(found.reasons) == len(texts) and all(map(str.__contains__, found.reasons, texts))


async def test_explain_says_who_lists_a_tool_and_what_the_policy_says() -> None:
    """`explain` says which provider lists a tool and how the policy answers for an identity."""

    def policy(request: PermissionRequest) -> Any:
        person = request.identity.principal if request.identity else None
        return "allow" if person == "ann" else Verdict("deny", "only ann may write")

    asked = agent(policy)
    allowed = await asked.explain("write", DiscoveryContext(identity=Identity(principal="ann")))
    assert (allowed.visible, allowed.provider_id) == (True, "static")
    assert str(allowed) == "Tool 'write' is offered:\n- provider 'static' lists it\n- the policy allows it"
    denied = await asked.explain("write")
    assert (denied.visible, denied.reasons[-1]) == (False, "the policy says deny: only ann may write")


async def test_explain_names_the_gate_that_keeps_a_tool_back() -> None:
    """`explain` names the gate that withholds a tool, also inside combined providers."""
    gate = gated_tools(static_tools([read, write]), lambda tool, ctx: tool.name == "read")
    for provider in (gate, combined(gate, skill_scoped_tools("x", [read]))):
        found = await within(Agent("a", model=ScriptedModel(), providers=[provider]).explain("write"))
        assert not found.visible
        assert found.reasons == ("provider 'static' lists it, but 'gated(static)' withholds it",)


async def test_explain_names_the_skill_that_brings_a_tool() -> None:
    """`explain` names the skill that brings a tool, and the tool is visible once the skill is active."""
    skill = Skill("files", "Files.", "Write carefully.", [write])
    for options in ({"skills": [skill]}, {"providers": [skill_scoped_tools("files", [write])]}):
        asked = Agent("a", model=ScriptedModel(), **options)
        hidden = await within(asked.explain("write"))
        assert not hidden.visible
        assert hidden.reasons[0].endswith("lists it only while skill 'files' is active; active: none")
        active = DiscoveryContext(active_skill_id="files", active_skill_ids=("files",))
        assert (await within(asked.explain("write", active))).visible


async def test_explain_tells_of_failures_collisions_and_other_names() -> None:
    """`explain` names a failed provider, a collision, a failed policy, and the nearest name for an unknown one."""
    down = DiscoveryProvider(FakeHub([write], faults=[OSError("no route")]), id="hub")
    found = await within(Agent("a", model=ScriptedModel(), providers=[down]).explain("write"))
    assert "provider 'hub' failed" in found.reasons[0]
    twice = Agent("a", model=ScriptedModel(), tools=[write], providers=[skill_scoped_tools("s", [write])])
    active = DiscoveryContext(active_skill_ids=("s",))
    found = await within(twice.explain("write", active))
    assert (found.visible, found.provider_id) == (False, None)
    assert found.reasons[-1].startswith("'static' and 'skill-scoped:s' both list 'write'; with collisions='error'")
    found = await within(twice.explain("wriite"))
    assert found.reasons == ("no provider of agent 'a' lists a tool of this name; did you mean 'write'?",)

    def fails(request: PermissionRequest) -> str:
        raise OSError("no answer")

    broken = agent(fails)
    assert "the policy failed: OSError: no answer" in str(await within(broken.explain("write")))


# --- collisions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("collisions", "winner"), [("first", "one"), ("last", "two"), ("prefix", "one")])
async def test_explain_says_who_has_a_name(collisions: Any, winner: str) -> None:
    """`explain` says which of two providers has a name under the agent's collision policy."""
    asked = agent(providers=[hub("one", write), hub("two", write)], collisions=collisions)
    found = await within(asked.explain("write"))
    assert (found.visible, found.provider_id) == (True, winner)
    loser = {"one": "two", "two": "one"}[winner]
    rest = "the other is offered as 'two__write'" if collisions == "prefix" else "the other is not offered"
    assert found.reasons == (
        "provider 'one' lists it",
        "provider 'two' lists it",
        f"with collisions='{collisions}' the name belongs to '{winner}', not to '{loser}'; {rest}",
    )


async def test_explain_knows_names_as_they_are_offered() -> None:
    """`explain` knows the name that `prefix` gives to the tool of the later provider, and asks the policy about it."""
    asked_about: list[tuple[str, str]] = []

    def policy(request: PermissionRequest) -> str:
        asked_about.append((request.tool_name, request.provider_id))
        return "allow"

    asked = agent(policy, providers=[hub("one", write), hub("two", write)], collisions="prefix")
    found = await within(asked.explain("two__write"))
    assert (found.visible, found.provider_id) == (True, "two")
    assert says(found, "it is 'write' of 'two', because 'one' has that name", "the policy allows it")
    assert asked_about == [("two__write", "two")]
    found = await within(agent(providers=[hub("two", write)], collisions="prefix").explain("two__write"))
    assert says(found, "no provider of agent 'a' lists a tool of this name; did you mean 'write'?")


async def test_explain_says_who_has_a_name_in_a_registry() -> None:
    """`explain` says which source of a registry has a name."""
    registry = ToolRegistry([write], collisions="prefix")
    registry.register_mcp(made("write"), "wiki")
    asked = agent(providers=[registry])
    found = await within(asked.explain("write"))
    assert says(found, "'registry' lists it", "the name belongs to source 'builtin', not to source 'mcp:wiki'")
    found = await within(asked.explain("wiki__write"))
    assert says(found, "'registry' lists it", "it is 'write' of source 'mcp:wiki'")
    assert found.visible


async def test_a_collision_of_other_tools_fails_the_run_too() -> None:
    """A collision between other tools makes a tool invisible, because the run fails."""
    asked = agent(providers=[hub("one", read, write), hub("two", read)])
    found = await within(asked.explain("write"))
    assert (found.visible, found.provider_id) == (False, None)
    assert says(found, "provider 'one' lists it", "'one' and 'two' both list 'read'")
    with pytest.raises(ToolNameCollision):
        await within(asked.run("x"))


# --- lazy tools -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "via"),
    [
        ({"tools": [made("write", lazy=True)]}, "__lazy__tool__discovery__"),
        ({"registry_mode": "lazy"}, "tool_search"),
        ({"tools": [made("write", lazy=True)], "registry_mode": "lazy"}, "tool_search"),
        ({"providers": [ToolRegistry([write], registry_mode="lazy")]}, "tool_search"),
    ],
)
async def test_explain_says_how_a_model_gets_a_lazy_tool(options: Any, via: str) -> None:
    """`explain` says how the model activates a lazy tool, and whether the policy allows it."""
    found = await within(agent(**options).explain("write"))
    assert (found.visible, found.via) == (False, via)
    assert says(found, "lists it", f"it is lazy: the model activates it with '{via}' before it can call it")
    assert (await within(agent(**options).explain(via))).visible

    def policy(request: PermissionRequest) -> Any:
        denied = request.stage == "activation" or request.tool_name == via
        return Verdict("deny", "not now") if denied else "allow"

    found = await within(agent(policy, **options).explain("write"))
    assert found.reasons[-3:] == (
        f"it is lazy: the model activates it with '{via}' before it can call it",
        f"the policy says deny of '{via}': not now",
        "the policy says deny of its activation: not now",
    )
    found = await within(agent(policy, **options).explain(via))
    assert (found.visible, found.provider_id) == (False, "lazy")
    assert found.reasons[-1] == "the policy says deny: not now"


async def test_explain_knows_the_tools_that_discover_others() -> None:
    """`explain` says for how many allowed lazy tools a discovery tool is offered."""
    found = await within(agent().explain("tool_search"))
    assert says(found, "offered to agents with tools that are found by searching; agent 'a' has none")
    found = await within(agent().explain("__lazy__tool__discovery__"))
    assert says(found, "offered to agents with lazy tools that are discovered by name; agent 'a' has none")
    found = await within(agent(registry_mode="lazy").explain("tool_search"))
    assert (found.visible, found.provider_id, found.reasons) == (True, "lazy", ("it is for 2 lazy tools",))
    policy: Any = lambda request: "deny" if request.tool_name == "write" else "allow"  # noqa: E731
    found = await within(agent(policy, registry_mode="lazy").explain("tool_search"))
    assert (found.visible, found.reasons) == (True, ("it is for 1 lazy tool", "the policy allows it"))
    found = await within(agent(lambda request: "deny", registry_mode="lazy").explain("tool_search"))
    assert says(found, "it is for 2 lazy tools, none of which the policy allows")


async def test_explain_knows_load_skill() -> None:
    """`explain` says that `load_skill` is offered to agents with skills."""
    found = await within(agent().explain("load_skill"))
    assert says(found, "it is offered to agents with skills; agent 'a' has none")
    skill = Skill("files", "Files.", "Write carefully.", [made("copy")])
    found = await within(agent(skills=[skill]).explain("load_skill"))
    assert (found.visible, found.provider_id) == (True, "skills")
    found = await within(agent(skills=[skill]).explain("copi"))
    assert says(found, "did you mean 'copy'?")


# --- providers that fail ----------------------------------------------------------------------------------------------


class Odd:
    """A provider that does not do what providers do."""

    id = "odd"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def list_tools(self, ctx: DiscoveryContext) -> Any:
        """Raise or return what it was made with."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer() if callable(self.answer) else self.answer


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (OSError("no route"), "OSError: no route"),
        (None, "it returned None instead of a list of tools"),
        ([write, write], "two tools are called 'write'"),
        ([made("load_skill")], "is reserved for"),
        (outlast, "no answer within 20 s"),
        (partial(anyio.sleep, 0), "it returned None instead of a list of tools"),
    ],
)
async def test_a_provider_that_fails_is_explained(answer: Any, problem: str) -> None:
    """A provider that fails is a reason in the explanation, and nothing is raised."""
    asked = agent(providers=[hub("one", write), Odd(answer)], limits=Limits(discovery_timeout=SOON))
    found = await within(asked.explain("write"))
    assert (found.visible, found.provider_id) == (False, "one")
    assert says(found, "provider 'one' lists it", "provider 'odd' failed, and a run fails with it unless a rule helps")
    assert problem in found.reasons[1]
    found = await within(asked.explain("wryte"))
    assert says(found, "provider 'odd' failed", "no provider of agent 'a' that responded lists a tool of this name")


async def test_a_provider_that_is_skipped_is_explained() -> None:
    """The explanation names a failed provider that `on_error="skip"` leaves out."""
    both = combined(Odd(OSError("no route")), hub("two", read), on_error="skip")
    asked = agent(providers=[both])
    found = await within(asked.explain("write"))
    assert says(
        found, "provider 'odd' failed, and 'combined(odd,two)' continues without it", "no provider of agent 'a'"
    )
    assert (await within(asked.explain("read"))).visible
    one_fails = agent(providers=[combined(Odd(OSError("no route")), hub("two", write))])
    found = await within(one_fails.explain("write"))
    assert not found.visible
    assert says(found, "provider 'combined(odd,two)' failed", "provider 'two' lists it")


async def test_a_gate_that_fails_is_explained() -> None:
    """A gate that fails withholds every tool, and the explanation has its exception."""

    def predicate(tool: Tool, ctx: DiscoveryContext) -> bool:
        raise LookupError("who?")

    found = await within(agent(providers=[gated_tools(static_tools([write]), predicate)]).explain("write"))
    assert not found.visible
    assert says(found, "provider 'gated(static)' failed", "'static' lists it, but 'gated(static)' failed")
    assert "LookupError: who?" in found.reasons[0]


async def test_gates_in_gates_are_explained() -> None:
    """`explain` names the inner gate that withholds a tool, whatever wraps it."""

    def only_read(tool: Tool, ctx: DiscoveryContext) -> bool:
        return tool.name == "read"

    skill = skill_scoped_tools("files", [made("copy")])
    inner = gated_tools(combined(static_tools([read, write]), skill), only_read)
    asked = agent(providers=[gated_tools(inner, lambda tool, ctx: True)])
    found = await within(asked.explain("write"))
    kept = "lists it, but 'gated(combined(static,skill-scoped:files))' withholds it"
    assert says(found, f"provider 'combined(static,skill-scoped:files)' {kept}")
    found = await within(asked.explain("copy"))
    assert says(found, "provider 'skill-scoped:files' lists it only while skill 'files' is active; active: none")


class ForStaff:
    """An application's own wrapper, which explains itself."""

    id = "for-staff"

    def __init__(self, inner: ToolProvider) -> None:
        self.inner = inner

    def list_tools(self, ctx: DiscoveryContext) -> Any:
        """List nothing for people without a name."""
        return self.inner.list_tools(ctx) if ctx.identity else ()

    async def explain(self, ctx: ExplainContext) -> None:
        """Say so."""
        if not ctx.is_listed:
            inner = await ctx.ask(self.inner)
            if inner.is_listed:
                ctx.add(f"{inner.tool_name!r} is only for staff")
            else:
                await inner.explain()


async def test_wrappers_of_an_application_explain_themselves() -> None:
    """A wrapper of an application explains itself, around providers of the SDK and inside them."""
    skill = skill_scoped_tools("files", [made("copy")])
    asked = agent(providers=[combined(ForStaff(combined(static_tools([write]), skill)))])
    assert (await within(asked.explain("write"))).reasons == ("'write' is only for staff",)
    assert says(await within(asked.explain("copy")), "only while skill 'files' is active; active: none")
    assert says(await within(asked.explain("copi")), "lists a tool of this name; did you mean 'copy'?")
    staff = DiscoveryContext(identity=Identity(principal="ann"))
    assert (await within(asked.explain("write", staff))).visible


async def test_a_provider_that_cannot_explain_itself_is_explained() -> None:
    """An exception of a provider's `explain` is part of the explanation."""

    class Silent(ForStaff):
        async def explain(self, ctx: ExplainContext) -> None:
            """Fail."""
            raise LookupError("no words")

    found = await within(agent(providers=[Silent(static_tools([write]))]).explain("write"))
    assert says(found, "provider 'for-staff' cannot explain itself: LookupError: no words", "no provider of agent 'a'")


async def test_a_tool_that_is_left_out_as_broken_is_explained() -> None:
    """The explanation of a tool that is left out as invalid says what is wrong with it."""
    broken = made("write", input_schema={"type": 7})
    quarantining = DiscoveryProvider(FakeHub([read, broken]), id="hub", on_invalid="quarantine")
    found = await within(agent(providers=[quarantining]).explain("write"))
    assert says(found, "provider 'hub' lists it, but it is invalid and left out: the input schema of tool 'write'")


async def test_a_policy_that_takes_too_long_is_explained() -> None:
    """A policy that does not answer in time is explained as a denial."""

    async def policy(request: PermissionRequest) -> str:
        await outlast()

    found = await within(agent(policy, limits=Limits(policy_timeout=SOON)).explain("write"))
    assert not found.visible
    assert says(found, "lists it", "the policy says deny: the policy did not answer in time")


async def test_a_policy_that_leaves_calls_to_a_person_is_explained() -> None:
    """A tool of which the policy leaves the calls to a person is visible."""
    found = await within(agent(lambda request: "ask").explain("write"))
    assert found.visible
    assert says(found, "lists it", "the policy allows it and leaves each call to a person")


async def test_an_observed_provider_is_explained_as_in_a_run(telemetry: Captured) -> None:
    """`explain` ignores the policy of an observed provider and makes no span."""
    found = await within(agent(providers=[observe(hub("one", write), policy=lambda request: "deny")]).explain("write"))
    assert found.visible
    assert says(found, "provider 'one' lists it")
    assert telemetry.spans == []


async def test_explain_tells_no_run_of_itself(telemetry: Captured) -> None:
    """`explain` makes no spans, events or metrics, not even when a tool of a run calls it."""
    registry = ToolRegistry([write], collisions="first")
    registry.register_mcp(made("write"), "wiki")
    both = combined(Odd(OSError("no route")), hub("one", write), on_error="skip")
    inner = agent(providers=[both, registry], collisions="first")

    async def ask(arguments: Any, ctx: object) -> str:
        return str(await inner.explain("write"))

    await within(inner.explain("write"))
    assert (telemetry.spans, telemetry.events, telemetry.metrics) == ([], [], [])
    model = ScriptedModel(ToolCall("ask"), "done")
    await within(Agent("b", model=model, tools=[Tool(name="ask", run=ask)]).run("x"))
    assert {span.name.split()[0] for span in telemetry.spans} == {
        "invoke_agent",
        "discover_tools",
        "compose_request",
        "chat",
        "execute_tool",
    }
    assert len(telemetry.find("discover_tools")) == 2
