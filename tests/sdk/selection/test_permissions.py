from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest

from pellucid import (
    Agent,
    CapturePolicy,
    Identity,
    PermissionRequest,
    Reliability,
    Skill,
    Tool,
    ToolCall,
    ToolError,
    Verdict,
    semconv,
    tool,
)
from pellucid.errors import PolicyHalt, ReliabilityFailFast
from pellucid.providers import DiscoveryProvider
from pellucid.reliability import CircuitBreaker, Rule, fail_fast, fallback, retry
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import capture
from support.runs import attributes, ending, everything, results, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid import Policy
    from pellucid.reliability import Reaction
    from pellucid_exporters.testing import Captured

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@tool
async def read(path: str = "") -> str:
    """Read a file."""
    ran.append("read")
    return "content"


@tool
async def write(path: str = "") -> str:
    """Write a file."""
    ran.append("write")
    return "written"


READ, WRITE = ToolCall("read", {"path": "a"}), ToolCall("write", {"path": "a"})


def forbids(*names: str, stage: str | None = None, answer: Any = "deny") -> Policy:
    """Return a policy that gives one answer for some tools."""

    def policy(request: PermissionRequest) -> Any:
        asked = request.tool_name in names and (stage is None or request.stage == stage)
        if asked and isinstance(answer, Exception):
            raise answer
        return answer if asked else "allow"

    return policy


def agent(policy: Policy, *steps: Any, tools: Sequence[Tool] = (read, write), **options: Any) -> Agent:
    """Return an agent with a policy."""
    return Agent("a", model=ScriptedModel(*steps), tools=tools, policy=policy, **options)


def offered(of: Agent) -> list[list[str]]:
    """Return the names of the tools that each request offered."""
    return [[definition.name for definition in request.tools] for request in of._setup.model.requests]  # type: ignore[attr-defined]


def denials(telemetry: Captured) -> list[Any]:
    """Return the events that tell of denials."""
    return [event for event in telemetry.events if event.name == "tool.denied"]


async def test_a_denied_tool_is_neither_offered_nor_run(telemetry: Captured) -> None:
    """A denied tool is not offered, and a call to it is not run and gets an error with the reason."""
    asked = agent(forbids("write", answer=Verdict("deny", "read-only account")), [READ, WRITE], "done")
    result = await within(asked.run("x"))
    assert offered(asked) == [["read"], ["read"]]
    assert ran == ["read"]
    first, second = results(result)
    assert not first.is_error
    assert second.is_error
    assert "Permission denied: tool 'write' was not run: read-only account." in str(second.response)
    span = telemetry.span("execute_tool write")
    assert ending(span) == ("failed", "ERROR", "permission_denied")
    assert attributes(span)[semconv.PERMISSION] == "deny"
    assert attributes(telemetry.span("execute_tool read"))[semconv.PERMISSION] == "allow"
    assert [attributes(each)[semconv.COMPOSE_DENIED] for each in telemetry.find("compose_request")] == [1, 1]
    told = [(e.tool_name, e.provider_id, e.stage, e.permission, e.reason, e.error_type) for e in denials(telemetry)]
    facts = ("deny", "read-only account", None)
    assert told == [("write", "static", "offer", *facts), ("write", "static", "dispatch", *facts)]


async def test_a_call_is_judged_by_its_arguments(telemetry: Captured) -> None:
    """A policy may deny a call because of its arguments, which it gets with the identity and the ids."""
    seen: list[PermissionRequest] = []

    def policy(request: PermissionRequest) -> str:
        if request.arguments is None:
            return "allow"
        seen.append(request)
        return "allow" if request.arguments["path"] != "/etc/passwd" else "deny"

    who = Identity(principal="ann")
    asked = agent(policy, [READ, ToolCall("read", {"path": "/etc/passwd"}, "c2")], "done")
    result = await within(asked.run("x", identity=who))
    assert [each.is_error for each in results(result)] == [False, True]
    assert ran == ["read"]
    [last] = [request for request in seen if request.tool_call_id == "c2"]
    assert (last.stage, last.tool_name, last.provider_id, last.identity) == ("dispatch", "read", "static", who)
    assert (last.agent, last.run_id, last.iteration, last.tool_call_id) == ("a", result.run_id, 1, "c2")
    [event] = denials(telemetry)
    assert (event.stage, event.tool_call_id) == ("dispatch", "c2")


async def test_malformed_arguments_are_refused_before_the_policy_is_asked() -> None:
    """Arguments that violate the schema are refused before the policy is asked."""
    stages: list[str] = []

    def policy(request: PermissionRequest) -> str:
        stages.append(request.stage)
        return "allow"

    result = await within(agent(policy, ToolCall("read", {"path": 7}), "done", tools=[read]).run("x"))
    assert results(result)[0].is_error
    assert stages == ["offer"]


@pytest.mark.parametrize("stage", ["offer", "dispatch"])
@pytest.mark.parametrize(
    ("answer", "error_type"),
    [
        (ValueError("who is ann?"), "ValueError"),
        (None, "TypeError"),
        (True, "TypeError"),
        ("yes", "TypeError"),
    ],
)
async def test_a_policy_that_fails_denies(telemetry: Captured, stage: str, answer: Any, error_type: str) -> None:
    """A policy that raises or returns something else than a permission denies, and the event says what went wrong."""
    result = await within(agent(forbids("write", stage=stage, answer=answer), WRITE, "done").run("x"))
    assert ran == []
    [refused] = results(result)
    assert refused.is_error
    assert "who is ann?" not in str(refused.response)
    event = denials(telemetry)[0]
    assert (event.stage, event.error_type) == (stage, error_type)
    assert "the policy" in event.reason


async def test_what_a_policy_says_is_redacted_in_telemetry() -> None:
    """The reason that a policy gives is redacted in telemetry."""
    with capture(capture=CapturePolicy("metadata")) as telemetry:
        verdict = Verdict("deny", "hunter2")
        await within(agent(forbids("write", answer=verdict), WRITE, "done").run("x"))
    assert "hunter2" not in everything(telemetry)
    assert denials(telemetry)[0].reason is None


async def test_a_policy_may_be_async() -> None:
    """An async policy is awaited at the offer and at dispatch."""
    stages: list[str] = []

    async def policy(request: PermissionRequest) -> str:
        await anyio.lowlevel.checkpoint()
        stages.append(request.stage)
        return "deny" if request.tool_name == "write" else "allow"

    asked = agent(policy, READ, "done")
    await within(asked.run("x"))
    assert offered(asked) == [["read"]] * 2
    assert stages == ["offer", "offer", "dispatch"]


async def test_a_policy_is_asked_about_an_offer_once() -> None:
    """A policy is asked about an offer once, and again only when the catalogue has changed."""
    asked: list[str] = []

    def policy(request: PermissionRequest) -> str:
        if request.stage == "offer":
            asked.append(request.tool_name)
        return "allow"

    calls = [READ] * 5
    one = agent(policy, *calls, "done", tools=[read])
    await within(one.run("x"))
    assert asked == ["read"]
    hub = FakeHub(lambda number: [read] if number == 1 else [read, write])
    provider = DiscoveryProvider(hub, id="hub", ttl=0)
    asked.clear()
    await within(Agent("a", model=ScriptedModel(READ, "done"), providers=[provider], policy=policy).run("x"))
    assert asked == ["read", "read", "write"]


async def test_a_denial_is_told_once_in_a_run(telemetry: Captured) -> None:
    """A denied offer is one event in each run, and the offer keeps its digest."""
    asked = agent(forbids("write"), READ, READ, "done", READ, "done")
    await within(asked.run("x"))
    assert len(denials(telemetry)) == 1
    await within(asked.run("x"))
    assert len(denials(telemetry)) == 2
    digests = {attributes(span)[semconv.CATALOG_DIGEST] for span in telemetry.find("compose_request")}
    assert len(digests) == 1
    alone = Agent("b", model=ScriptedModel("done"), tools=[read])
    await within(alone.run("x"))
    assert attributes(telemetry.find("compose_request")[-1])[semconv.CATALOG_DIGEST] in digests


async def test_a_halt_ends_the_run_and_every_call_has_its_result(telemetry: Captured) -> None:
    """A halt lets calls under way finish, runs no others, and its error has every result."""
    begun, over = anyio.Event(), anyio.Event()

    async def slow(arguments: Any, ctx: object) -> str:
        begun.set()
        await over.wait()
        ran.append("slow")
        return "finished"

    async def policy(request: PermissionRequest) -> Any:
        if request.stage == "dispatch" and request.tool_name == "write":
            await begun.wait()
            return Verdict("halt", "that is enough")
        if request.stage == "dispatch" and request.tool_name == "read":
            await over.wait()
        return "allow"

    calls = [ToolCall("slow", {}, "1"), ToolCall("write", {}, "2"), ToolCall("read", {}, "3")]
    asked = agent(policy, calls, tools=[Tool(name="slow", run=slow), write, read])
    asked.on("tool.denied", lambda event: over.set())
    with pytest.raises(PolicyHalt, match="that is enough") as caught:
        await within(asked.run("x"))
    halt = caught.value
    assert (halt.tool_name, halt.stage, halt.reason) == ("write", "dispatch", "that is enough")
    assert [(each.id, each.is_error) for each in results(halt)] == [("1", False), ("2", True), ("3", True)]
    assert ran == ["slow"]
    endings = {span.name: ending(span)[2] for span in telemetry.spans}
    assert endings["execute_tool write"] == endings["execute_tool read"] == "policy_halt"
    assert endings["invoke_agent a"] == "policy_halt"
    assert attributes(telemetry.span("execute_tool write"))[semconv.PERMISSION] == "halt"
    [event] = denials(telemetry)
    assert (event.permission, event.stage) == ("halt", "dispatch")


async def test_a_halt_at_the_offer_ends_the_run_before_the_model_is_asked(telemetry: Captured) -> None:
    """A halt at the offer ends the run before the model is asked, and its error has the input."""
    asked = agent(forbids("write", answer="halt"), "never")
    with pytest.raises(PolicyHalt, match=r"at tool 'write' \(offer\)") as caught:
        await within(asked.run("x"))
    assert offered(asked) == []
    assert [message.text for message in caught.value.messages] == ["x"]
    assert ending(telemetry.span("compose_request")) == ("failed", "ERROR", "policy_halt")


async def test_loading_a_skill_needs_permission_too() -> None:
    """A denied activation of a skill brings neither its instructions nor its tools."""
    skill = Skill("files", "Files.", "Write carefully.", [write])
    load = ToolCall("load_skill", {"skill_id": "files"})
    asked = agent(forbids("load_skill", stage="dispatch"), load, "done", tools=[read], skills=[skill])
    result = await within(asked.run("x"))
    assert offered(asked) == [["read", "load_skill"]] * 2
    assert "Write carefully." not in str(results(result))
    asked = agent(forbids("write"), load, "done", tools=[read], skills=[skill])
    await within(asked.run("x"))
    assert offered(asked) == [["read", "load_skill"]] * 2


async def test_a_policy_that_waits_is_cancelled_with_the_run() -> None:
    """A policy that waits ends when the scope of the run is cancelled."""

    async def policy(request: PermissionRequest) -> str:
        scope.cancel()
        await anyio.sleep_forever()
        return "allow"

    with anyio.fail_after(60), anyio.CancelScope() as scope:
        await agent(policy, "never").run("x")
    assert scope.cancelled_caught


async def test_what_is_denied_cannot_be_searched_or_activated(telemetry: Captured) -> None:
    """A denied tool is neither found nor activated in lazy mode, and a call to it is denied."""
    model = ScriptedModel(
        ToolCall("tool_search", {"query": "file"}),
        ToolCall("tool_search", {"names": ["read", "write"]}),
        [READ, WRITE],
        "done",
    )
    agent = Agent("a", model=model, tools=[read, write], registry_mode="lazy", policy=forbids("write"))
    result = await within(agent.run("go"))
    parts: list[Any] = [part for message in result.messages if message.role == "tool" for part in message.parts]
    found, activated, *called = (part.response for part in parts)
    assert [each["name"] for each in found["results"]] == ["read"]
    assert [each["activated"] for each in activated["tools"]] == [True, False]
    assert called[0] == "content"
    assert "Permission denied" in called[1]
    assert ran == ["read"]
    offered = {definition.name for request in model.requests for definition in request.tools}
    assert offered == {"tool_search", "read"}


def flaky(*, failures: int) -> Tool:
    """Return an idempotent tool that fails a number of times."""

    async def run(arguments: Any, ctx: object) -> str:
        ran.append("flaky")
        if len(ran) <= failures:
            raise ToolError("busy")
        return "fetched"

    return Tool(name="flaky", run=run, idempotent=True)


AGAIN = Rule(when=lambda s: s.operation == "tool" and s.error is not None, then=retry(backoff=0.0), kind="again")
INSTEAD = Rule(when=AGAIN.when, then=fallback(lambda s: "what somebody else was told"), kind="instead")


async def test_each_attempt_needs_permission(telemetry: Captured) -> None:
    """A permission that is withdrawn between two attempts of a rule prevents the next attempt."""
    asked: list[str] = []

    def policy(request: PermissionRequest) -> Any:
        asked.append(request.stage)
        return Verdict("deny", "withdrawn") if request.stage == "dispatch" and len(ran) == 2 else "allow"

    model = ScriptedModel(ToolCall("flaky"), "done")
    tools = [flaky(failures=9)]
    agent = Agent("a", model=model, tools=tools, policy=policy, reliability=Reliability([AGAIN]))
    result = await within(agent.run("go"))
    assert ran == ["flaky"] * 2
    assert asked == ["offer", "dispatch", "dispatch", "dispatch"]
    [refused] = results(result)
    assert "was not run: withdrawn" in str(refused.response)
    span = telemetry.span("execute_tool flaky")
    assert ending(span) == ("failed", "ERROR", "permission_denied")
    assert attributes(span)[semconv.PERMISSION] == "deny"
    assert len(denials(telemetry)) == 1


@pytest.mark.parametrize("rule", [AGAIN, INSTEAD], ids=["again", "instead"])
async def test_rules_leave_a_denial_what_it_is(telemetry: Captured, rule: Rule) -> None:
    """A reliability rule neither repeats nor replaces a denied call, and a halt still ends the run."""
    model = ScriptedModel(ToolCall("flaky"), "done")
    options: dict[str, Any] = {"tools": [flaky(failures=0)], "reliability": Reliability([rule])}
    agent = Agent("a", model=model, policy=forbids("flaky", stage="dispatch"), **options)
    result = await within(agent.run("go"))
    assert result.output == "done"
    assert ran == []
    [refused] = results(result)
    assert refused.is_error
    assert "Permission denied" in str(refused.response)
    [note] = [event for event in telemetry.span("execute_tool flaky").events if event.name.startswith("reliability.")]
    assert (note.attributes or {})[semconv.RELIABILITY_KIND] == "denied"
    assert len(denials(telemetry)) == 1
    policy = forbids("flaky", stage="dispatch", answer="halt")
    halting = Agent("b", model=ScriptedModel(ToolCall("flaky")), policy=policy, **options)
    with pytest.raises(PolicyHalt):
        await within(halting.run("go"))
    assert ran == []


async def test_a_rule_may_end_the_run_for_a_denial() -> None:
    """A rule may end the run because of a denial."""
    enough = Rule(when=AGAIN.when, then=fail_fast(), kind="enough")
    policy = forbids("write", stage="dispatch")
    asked = agent(policy, WRITE, reliability=Reliability([enough]))
    with pytest.raises(ReliabilityFailFast, match="Permission denied"):
        await within(asked.run("go"))
    assert ran == []


@pytest.mark.parametrize("then", [retry(backoff=0.0), fallback(lambda s: "instead")])
@pytest.mark.parametrize("answer", ["deny", "halt"])
async def test_rules_leave_a_denied_call_what_it_is(telemetry: Captured, answer: str, then: Reaction) -> None:
    """A denied call is not repeated or replaced, and the circuit breaker does not count it."""
    again = Tool(name="write", run=lambda arguments, ctx: ran.append("write"), idempotent=True)
    rule = Rule(when=lambda s: s.operation == "tool" and s.error is not None, then=then, kind="x")
    given: dict[str, Any] = {
        "tools": [again],
        "policy": forbids("write", stage="dispatch", answer=answer),
        "reliability": Reliability([rule], breaker=CircuitBreaker(failures=1)),
    }
    for _ in range(2):
        run = Agent("a", model=ScriptedModel(WRITE, "done"), **given).run("go")
        if answer == "halt":
            with pytest.raises(PolicyHalt):
                await within(run)
        else:
            assert "Permission denied" in str(results(await within(run))[0].response)
    assert ran == []
    assert len(denials(telemetry)) == 2
    calls = telemetry.find("execute_tool write")
    barred = [event for span in calls for event in span.events if event.name.startswith("reliability.")]
    assert [(event.attributes or {})["pellucid.reliability.kind"] for event in barred] == ["denied"] * 2
    assert [event.name for event in telemetry.events if event.name.startswith("circuit.")] == []
