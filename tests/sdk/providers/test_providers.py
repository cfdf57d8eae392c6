from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from pellucid import (
    ConfigError,
    DiscoveryContext,
    DiscoveryError,
    DiscoveryProvider,
    Identity,
    Tool,
    ToolProvider,
    combined,
    gated_tools,
    semconv,
    skill_scoped_tools,
    static_tools,
)
from pellucid.errors import DiscoveryTimeout, InvalidCatalog
from pellucid.events import ToolsCatalogChanged, ToolsQuarantined
from pellucid.providers import Lister
from pellucid.telemetry import Scope, enter_scope, leave_scope
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured
from support.hubs import named, names, nothing
from support.runs import attributes, ending

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

CTX = DiscoveryContext()


class Answering:
    """A provider that answers what it is told to."""

    def __init__(self, answer: Any, **facts: Any) -> None:
        self.id = "odd"
        self.answer = answer
        self.calls = 0
        vars(self).update(facts)

    def list_tools(self, ctx: DiscoveryContext) -> Any:
        """Answer."""
        self.calls += 1
        return self.answer


async def ask(
    telemetry: Captured, provider: ToolProvider | Lister, ctx: DiscoveryContext = CTX, within: float | None = 5
) -> list[str]:
    """List tools within a boundary, as a run does, and return their names."""
    lister = provider if isinstance(provider, Lister) else Lister(provider)
    scope = Scope(run_id="r1", pipeline=telemetry)
    token = enter_scope(scope)
    try:
        with anyio.fail_after(60):
            return names((await lister.list(scope, ctx, within)).tools)
    finally:
        leave_scope(token)


# --- static -----------------------------------------------------------------------------------------------------------


async def test_static_tools_are_always_listed(telemetry: Captured) -> None:
    """Static tools are copied when the provider is made, and listed without an await."""
    tools = named("a", "b")
    provider = static_tools(iter(tools))
    tools.clear()
    assert isinstance(provider.list_tools(CTX), tuple)
    assert await ask(telemetry, provider) == ["a", "b"]
    span = attributes(telemetry.span("discover_tools static"))
    assert (span[semconv.PROVIDER_KIND], span[semconv.DISCOVERY_CACHE], span[semconv.DISCOVERY_TOOL_COUNT]) == (
        "static",
        "none",
        2,
    )


# --- skills -----------------------------------------------------------------------------------------------------------


async def test_skill_scoped_tools_come_and_go_with_the_skill(telemetry: Captured) -> None:
    """Tools of a skill are listed while the skill is active, also if another one was activated after it."""
    provider = skill_scoped_tools("maps", named("a"))
    assert provider.id == "skill-scoped:maps"
    for ctx, expected in [
        (CTX, []),
        (DiscoveryContext(active_skill_id="other", active_skill_ids=("other",)), []),
        (DiscoveryContext(active_skill_id="maps"), ["a"]),
        (DiscoveryContext(active_skill_id="other", active_skill_ids=("maps", "other")), ["a"]),
    ]:
        assert await ask(telemetry, provider, ctx) == expected
    assert attributes(telemetry.spans[0])[semconv.PROVIDER_KIND] == "skill"


@pytest.mark.parametrize("skill", ["", "  "])
def test_a_skill_needs_a_name(skill: str) -> None:
    """An empty id is refused."""
    with pytest.raises(ConfigError, match="skill_id"):
        skill_scoped_tools(skill, [])


# --- gates ------------------------------------------------------------------------------------------------------------


async def later(value: Any) -> Any:
    """Return a value after a checkpoint."""
    await anyio.lowlevel.checkpoint()
    return value


@pytest.mark.parametrize("slow_gate", [True, False])
@pytest.mark.parametrize("slow_provider", [True, False])
async def test_a_gate_lists_what_its_predicate_allows(
    telemetry: Captured, *, slow_gate: bool, slow_provider: bool
) -> None:
    """A gate lists the tools that its predicate allows, and predicate and provider may be sync or async."""

    def allow(tool: Tool, ctx: DiscoveryContext) -> Any:
        allowed = tool.name != "b" and ctx.iteration == 2
        return later(allowed) if slow_gate else allowed

    tools = named("a", "b", "c")
    inner = FakeListing(tools) if slow_provider else static_tools(tools)
    gate = gated_tools(inner, allow)
    ctx = DiscoveryContext(iteration=2)
    assert await ask(telemetry, gate, ctx) == ["a", "c"]
    assert [span.name for span in telemetry.spans] == [f"discover_tools gated({inner.id})"]
    if not slow_gate and not slow_provider:
        assert isinstance(gate.list_tools(ctx), tuple)


class FakeListing:
    """A provider that lists after a moment."""

    id = "slow"

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tools

    async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        """List after a moment."""
        await anyio.lowlevel.checkpoint()
        return self.tools


@pytest.mark.parametrize("slow", [True, False])
async def test_a_gate_that_cannot_decide_stays_shut(telemetry: Captured, *, slow: bool) -> None:
    """A gate whose predicate raises fails the discovery with the exception as its cause."""
    error = PermissionError("no policy")

    async def refuse(tool: Tool, ctx: DiscoveryContext) -> bool:
        raise error

    def refuse_at_once(tool: Tool, ctx: DiscoveryContext) -> bool:
        raise error

    with pytest.raises(DiscoveryError, match=r"gated\(static\).*no policy") as caught:
        await ask(telemetry, gated_tools(static_tools(named("a")), refuse if slow else refuse_at_once))
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("slow", [True, False])
@pytest.mark.parametrize("answer", [None, "abc", 7])
async def test_a_gate_does_not_hide_what_is_wrong_with_a_list(telemetry: Captured, answer: Any, *, slow: bool) -> None:
    """An invalid list fails the discovery behind a gate as it does without one."""
    inner: Any = FakeListing(answer) if slow else Answering(answer)
    with pytest.raises(InvalidCatalog):
        await ask(telemetry, gated_tools(inner, lambda tool, ctx: tool.name != "b"))


async def test_a_gate_leaves_broken_tools_to_quarantine(telemetry: Captured) -> None:
    """The predicate of a gate is not asked about objects that are no tools, which are quarantined."""
    inner: Any = Answering([*named("a", "b"), "junk"], on_invalid="quarantine")
    assert await ask(telemetry, gated_tools(inner, lambda tool, ctx: tool.name != "b")) == ["a"]
    assert [event.problem for event in telemetry.events if isinstance(event, ToolsQuarantined)] == [
        "its list holds an object of type str instead of a Tool"
    ]


async def test_a_gate_has_what_the_provider_behind_it_says_of_itself(telemetry: Captured) -> None:
    """A gate has the objective, address, quarantine and timeout of its provider, and closes it."""
    closed: list[bool] = []

    async def aclose() -> None:
        closed.append(True)

    broken = Tool(name="not a name", run=nothing)
    facts = {"objective": 0.5, "server_address": "example.com", "server_port": 443, "on_invalid": "quarantine"}
    inner: Any = Answering([*named("a"), broken], timeout=2.0, aclose=aclose, **facts)
    gate: Any = gated_tools(inner, lambda tool, ctx: True)
    assert await ask(telemetry, gate) == ["a"]
    assert gate.timeout > inner.timeout
    assert attributes(telemetry.span("discover_tools"))[semconv.SERVER_ADDRESS] == "example.com"
    assert telemetry.value(semconv.DISCOVERY_OBJECTIVE, pellucid_provider_id="gated(odd)") == 0.5
    await gate.aclose()
    assert closed == [True]


# --- combined ---------------------------------------------------------------------------------------------------------


async def test_combined_lists_all_in_order(telemetry: Captured) -> None:
    """`combined` lists the tools in the order of the providers, each with a span below its own."""
    hub = DiscoveryProvider(FakeHub(named("a"), latency=0.01), id="hub")
    assert await ask(telemetry, combined(hub, static_tools(named("b")))) == ["a", "b"]
    ((whole, parts),) = telemetry.tree()
    assert whole == "discover_tools combined(hub,static)"
    assert sorted(parts) == [("discover_tools hub", []), ("discover_tools static", [])]


async def test_combined_fails_with_the_first_failure(telemetry: Captured) -> None:
    """`combined` raises the failure of the provider, and cancels the others."""
    error = OSError("down")
    hub = DiscoveryProvider(FakeHub(faults=[error]), id="hub")
    slow = DiscoveryProvider(FakeHub(latency=math.inf), id="slow")
    with pytest.raises(DiscoveryError, match="'hub' failed: OSError: down") as caught:
        await ask(telemetry, combined(slow, hub))
    assert caught.value.__cause__ is error
    assert ending(telemetry.span("discover_tools slow")) == ("cancelled", "UNSET", None)
    assert ending(telemetry.span("discover_tools hub"))[0] == "failed"


@pytest.mark.parametrize("own", [0.05, None])
async def test_combined_leaves_out_a_provider_that_hangs(telemetry: Captured, own: float | None) -> None:
    """`combined` with `on_error="skip"` leaves out a provider that times out."""

    class Hanging:
        id = "hung"

        async def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            await anyio.sleep_forever()
            return []

    slow: Any = DiscoveryProvider(FakeHub(latency=math.inf), id="hung", timeout=own) if own else Hanging()
    scope_names = await ask(telemetry, combined(slow, static_tools(named("b")), on_error="skip"), within=0.05)
    assert scope_names == ["b"]
    assert ending(telemetry.span("discover_tools hung")) == ("timeout", "ERROR", "timeout")
    assert ending(telemetry.span("discover_tools combined"))[0] == "completed"


def test_combined_options_that_cannot_work_are_refused() -> None:
    """`combined` refuses no providers, equal ids and an unknown `on_error`."""
    one = static_tools([])
    for providers in ((), (one, one)):
        with pytest.raises(ConfigError, match="combined"):
            combined(*providers)
    with pytest.raises(ConfigError, match="on_error"):
        combined(one, on_error="ignore")  # type: ignore[arg-type]  # that is what is tested


async def test_combined_closes_all() -> None:
    """`combined` closes the providers that can be closed."""
    hub = FakeHub(named("a"))
    closed: list[bool] = []

    async def aclose() -> None:
        closed.append(True)

    vars(hub)["aclose"] = aclose
    provider: Any = combined(DiscoveryProvider(hub, id="hub"), static_tools([]))
    with anyio.fail_after(60):
        await provider.aclose()
    assert closed == [True]


# --- listing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "provider",
    [
        object(),
        named("a")[0],
        Answering([], id=""),
        Answering([], id=3),
        Answering([], list_tools=3),
        Answering([], objective=0),
        Answering([], objective=-1.0),
    ],
)
def test_what_is_no_provider_is_refused(provider: Any) -> None:
    """An object that is no provider is refused with `ConfigError`."""
    with pytest.raises(ConfigError):
        Lister(provider)


class Unreadable(Sequence[Tool]):
    """A list that raises when it is read."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        raise ConnectionError("lazy")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "returned None"),
        ("ab", "an object of type str"),
        (b"ab", "an object of type bytes"),
        ({"a": 1}, "an object of type dict"),
        (iter(()), "an object of type tuple_iterator"),
        ([None], "holds None"),
        (named("a", "a"), "two tools are called 'a'"),
        (named(""), "tool name ''"),
        (named("x" * 65), "64 characters"),
        ([Tool(name=5, run=nothing)], "tool name 5"),  # type: ignore[arg-type]  # that is what is tested
        ([Tool(name="a", run=nothing, input_schema={"type": "object", "required": 1})], "is broken"),
        ([Tool(name="a", run=nothing, input_schema=None)], "is broken"),  # type: ignore[arg-type]  # the same
        ([Tool(name="a", run=nothing, description="\ud83d")], "not valid text"),
        (Unreadable(), "ConnectionError: lazy"),
    ],
)
@pytest.mark.parametrize("slow", [True, False])
async def test_what_is_no_catalogue_is_refused(telemetry: Captured, answer: Any, problem: str, *, slow: bool) -> None:
    """The error about an invalid catalogue names the provider and the fault."""
    with pytest.raises(InvalidCatalog, match=problem) as caught:
        await ask(telemetry, Answering(later(answer) if slow else answer))
    assert caught.value.provider_id == "odd"
    assert ending(telemetry.span("discover_tools odd")) == ("failed", "ERROR", "invalid_catalog")
    assert [event.name for event in telemetry.events] == ["tools.discovery_started", "tools.discovery_failed"]


async def test_quarantine_leaves_broken_tools_out_and_says_so(telemetry: Captured) -> None:
    """Quarantine leaves out each broken tool with an event, and an answer that is no list is still refused."""
    broken = Tool(name="b", run=nothing, input_schema={"type": "objekt"})
    answer = [*named("a"), broken, None, *named("a", "c")]
    assert await ask(telemetry, Answering(answer, on_invalid="quarantine")) == ["a", "c"]
    told = [(event.tool_name, event.problem) for event in telemetry.events if isinstance(event, ToolsQuarantined)]
    assert [name for name, _ in told] == ["b", "None", "a"]
    with pytest.raises(InvalidCatalog):
        await ask(telemetry, Answering(None, on_invalid="quarantine"))


@pytest.mark.parametrize("own", [None, 0.02])
async def test_a_provider_s_own_timeout_wins(telemetry: Captured, own: float | None) -> None:
    """The timeout of a provider wins over the limit of the run, which holds for providers without one."""

    async def hang() -> None:
        await anyio.sleep_forever()

    with pytest.raises(DiscoveryTimeout, match=r"within 0\.02 s"):
        await ask(telemetry, Answering(hang(), timeout=own), within=0.02 if own is None else 60)
    assert ending(telemetry.span("discover_tools")) == ("timeout", "ERROR", "timeout")


async def test_a_list_that_did_not_change_costs_nothing(telemetry: Captured) -> None:
    """A list of the same tools is the same catalogue."""
    tools = named("a", "b")
    provider = Answering(tools)
    lister = Lister(provider)
    first = lister.check(provider.list_tools(CTX))
    assert lister.check(list(tools)) is first
    assert lister.check(tools[::-1]) is not first
    assert lister.check(tools[::-1]).digest != first.digest
    assert lister.check(named("a", "b")).digest == first.digest


async def test_a_change_is_told_and_equal_content_is_none(telemetry: Captured) -> None:
    """A changed catalogue is an event, an attribute and a count; equal tools and other identities are no change."""
    provider = Answering(named("a"))
    lister = Lister(provider)
    await ask(telemetry, lister)
    provider.answer = named("a")
    await ask(telemetry, lister)
    provider.answer = named("a", "b")
    await ask(telemetry, lister, DiscoveryContext(identity=Identity(tenant="acme")))
    assert [event for event in telemetry.events if isinstance(event, ToolsCatalogChanged)] == []
    await ask(telemetry, lister)
    (changed,) = [event for event in telemetry.events if isinstance(event, ToolsCatalogChanged)]
    assert (changed.tool_count, changed.digest != changed.previous_digest) == (2, True)
    assert telemetry.value(semconv.CATALOG_CHANGES, pellucid_provider_id="odd") == 1
    assert telemetry.value(semconv.CATALOG_SIZE, pellucid_provider_id="odd") == 2
    flags = [attributes(span).get(semconv.CATALOG_CHANGED) for span in telemetry.spans]
    assert flags == [False, False, False, True]


async def test_a_provider_is_asked_once(telemetry: Captured) -> None:
    """A discovery calls `list_tools` once."""
    provider = Answering(named("a"))
    await ask(telemetry, provider)
    assert provider.calls == 1
