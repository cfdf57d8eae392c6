from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from pellucid import (
    Agent,
    CapturePolicy,
    DiscoveryProvider,
    Identity,
    Limits,
    Message,
    Skill,
    TelemetryOptions,
    Tool,
    ToolCall,
    semconv,
    tool,
)
from pellucid.messages import BlobPart
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import Captured, capture
from support.runs import attributes, everything, span_id, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from pellucid.models import Settings

pytestmark = pytest.mark.anyio


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


def asking(times: int) -> ScriptedModel:
    """Return a model that looks up words before it answers."""
    return ScriptedModel(*(ToolCall("look_up", {"word": f"word {n}"}) for n in range(times)), "done")


def inputs(span: ReadableSpan) -> list[dict[str, Any]]:
    """Return the recorded input messages."""
    found: list[dict[str, Any]] = json.loads(attributes(span)[semconv.INPUT_MESSAGES])
    return found


def recorded_bytes(spans: Sequence[ReadableSpan]) -> int:
    """Return the bytes of all text on these spans."""
    return sum(len(value.encode()) for span in spans for value in attributes(span).values() if isinstance(value, str))


async def test_each_message_is_recorded_by_the_chat_span_that_it_is_new_to(telemetry: Captured) -> None:
    """Each chat span records only the new messages, and refers to the span before."""
    result = await within(Agent("a", model=asking(3), tools=[look_up]).run("words, please"))
    chats = telemetry.find("chat")
    told = [message for chat in chats for message in inputs(chat)]
    assert told == [message.to_dict() for message in result.messages[:-1]]
    assert [len(inputs(chat)) for chat in chats] == [1, 2, 2, 2]
    for before, chat in pairwise(chats):
        assert attributes(chat)[semconv.CONTENT_RECORDED_ON] == span_id(before)
    assert [attributes(chat).get(semconv.CONTENT_REPEATED) for chat in chats] == [None, 1, 3, 5]
    assert inputs(telemetry.span("invoke_agent")) == inputs(chats[0])


async def test_the_digest_and_size_are_those_of_the_whole_input(telemetry: Captured) -> None:
    """The digest and size of an input are those of the whole conversation."""
    result = await within(Agent("a", model=asking(1), tools=[look_up]).run("words"))
    *history, last = result.messages[:-1]
    await within(Agent("b", model=ScriptedModel("done"), tools=[look_up]).run(last, history=history))
    _, second, fresh = telemetry.find("chat")
    for name in (semconv.INPUT_DIGEST, semconv.INPUT_BYTES):
        assert attributes(second)[name] == attributes(fresh)[name]
    assert len(inputs(fresh)) == 3


async def test_requests_that_differ_have_other_digests(telemetry: Captured) -> None:
    """Requests with different settings or output types have different digests, and `extra` does not count."""
    settings: list[Settings] = [
        {"temperature": 0.1, "seed": 1},
        {"seed": 1, "temperature": 0.1},
        {"seed": 1, "temperature": 0.1, "extra": {"key": "x"}},
        {"seed": 1, "temperature": 0.2},
    ]
    for each in settings:
        await within(Agent("a", model=ScriptedModel("1"), settings=each).run("go"))
    for kind in (int, float):
        await within(Agent("a", model=ScriptedModel("1"), output=kind).run("go"))
    digests = [attributes(span)[semconv.REQUEST_DIGEST] for span in telemetry.find("compose_request")]
    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests)) == 4


async def test_instructions_definitions_and_catalogues_are_recorded_once(telemetry: Captured) -> None:
    """Instructions, definitions and catalogues are recorded once in a run, and later spans refer to them."""
    tools = [look_up, *(tool(name=f"tool_{n}", description="Do it, carefully.")(lambda: "x") for n in range(20))]
    await within(Agent("a", model=asking(2), tools=tools, instructions="Be kind.").run("words"))
    chats, listings, requests = (telemetry.find(name) for name in ("chat", "discover_tools", "compose_request"))
    for name in (semconv.SYSTEM_INSTRUCTIONS, semconv.TOOL_DEFINITIONS):
        assert [name in attributes(chat) for chat in chats] == [True, False, False]
    first, *later = [json.loads(attributes(listing)[semconv.OUTPUT]) for listing in listings]
    assert len(first) == 21
    assert later == [{"recorded_on": span_id(listings[0])}] * 2
    assert len({attributes(listing)[semconv.OUTPUT_DIGEST] for listing in listings}) == 1
    first, *later = [json.loads(attributes(request)[semconv.OUTPUT]) for request in requests]
    assert len(first.pop("tools")) == first["tool_count"] == 21
    assert later == [{"messages": 3, "tool_count": 21}, {"messages": 5, "tool_count": 21}]


class Login(BaseModel):
    """An answer with a field that is named like a secret."""

    password: str


async def test_a_run_records_the_configuration_of_its_agent(telemetry: Captured) -> None:
    """The span of a run has the agent's configuration: modes, limits other than the defaults, and the output schema."""
    model = ScriptedModel('{"password": "x"}', '{"password": "x"}')
    skill, hub = Skill("refunds", "How to.", "Do it."), DiscoveryProvider(FakeHub(), id="git")
    agent = Agent(
        "a",
        model=model,
        output=Login,
        tools=[look_up],
        providers=[hub],
        skills=[skill],
        limits=Limits(max_iterations=3, model_timeout=None),
        registry_mode="lazy",
        collisions="first",
        pin=True,
    )
    for _ in range(2):
        await within(agent.run("hi"))
    texts = [attributes(span)[semconv.AGENT_CONFIGURATION] for span in telemetry.find("invoke_agent")]
    assert texts[0] is texts[1]
    configuration = json.loads(texts[0])
    assert configuration.pop("output_schema")["properties"] == {"password": {"title": "Password", "type": "string"}}
    assert configuration == {
        "registry_mode": "lazy",
        "collisions": "first",
        "pin": True,
        "limits": {"max_iterations": 3, "model_timeout": None},
        "skills": ["refunds"],
        "providers": [
            {"id": "static", "kind": "static"},
            {"id": "git", "kind": "hub"},
            {"id": "skills", "kind": "skill"},
        ],
    }


async def test_a_catalogue_that_changes_is_recorded_again(telemetry: Captured) -> None:
    """A catalogue that changes is recorded again."""
    listings = [[tool(name=f"{word}_{n}")(lambda: "x") for n in range(20)] for word in ("one", "two", "one")]
    hub = FakeHub(lambda number: [look_up, *listings[number - 1]])
    provider = DiscoveryProvider(hub, id="hub", ttl=0)
    await within(Agent("a", model=asking(2), providers=[provider]).run("words"))
    spans = telemetry.find("discover_tools")
    first, second, third = [json.loads(attributes(span)[semconv.OUTPUT]) for span in spans]
    assert {item["name"] for item in first} != {item["name"] for item in second}
    assert third == {"recorded_on": span_id(spans[0])}
    assert [semconv.TOOL_DEFINITIONS in attributes(chat) for chat in telemetry.find("chat")] == [True, True, True]


async def test_what_a_run_records_grows_with_what_is_new(telemetry: Captured) -> None:
    """Each of 200 iterations with 100 tools records about as many bytes as the others."""
    tools = [look_up, *(tool(name=f"tool_{n}", description="Do it, carefully." * 4)(lambda: "x") for n in range(99))]
    await within(Agent("a", model=asking(199), tools=tools, limits=Limits(max_iterations=200)).run("words"), 60)
    of = [[span for span in telemetry.spans if attributes(span).get(semconv.ITERATION) == n] for n in range(1, 200)]
    sizes = [recorded_bytes(spans) for spans in of[1:]]
    assert max(sizes) < 1.02 * min(sizes)
    assert max(sizes) < 4096


@pytest.mark.parametrize("limit", [1024, 4096])
async def test_a_span_holds_no_more_than_its_bound(limit: int) -> None:
    """Later values of a span get the bytes that are left, as valid JSON, and omitted content is counted."""
    long = "word " * limit
    policy = CapturePolicy("full", max_bytes=limit, max_span_bytes=limit)
    with capture(capture=policy) as telemetry:
        agent = Agent("a", model=ScriptedModel(long), instructions=long, tools=[look_up])
        await within(agent.run([Message("user", long), Message("assistant", long), Message("user", long)]))
    chat = attributes(telemetry.span("chat"))
    names = (
        semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.SYSTEM_INSTRUCTIONS, semconv.TOOL_DEFINITIONS,
    )  # fmt: skip
    assert sum(len(chat[name].encode()) for name in names) <= limit
    assert all(json.loads(chat[name]) is not None for name in names)
    assert chat[semconv.CONTENT_OMITTED] >= 2


def parts_of(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the binary parts in recorded content."""
    if isinstance(value, dict):
        if value.get("type") == "blob":
            yield value
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from parts_of(item)


@pytest.mark.parametrize("limit", [300, 1024, 4096])
@pytest.mark.parametrize("mode", ["full", "redacted"])
async def test_a_part_that_is_cut_keeps_what_it_is(mode: Any, limit: int) -> None:
    """A binary part that is cut keeps its modality and MIME type."""
    content = "QUJD" * 4000
    image = BlobPart(content=content, modality="image", mime_type="image/png")
    picture = Tool(name="picture", run=lambda arguments, ctx: (image, image))
    model = ScriptedModel(ToolCall("picture", {}), "done")
    with capture(capture=CapturePolicy(mode, max_bytes=limit)) as telemetry:
        await within(Agent("a", model=model, tools=[picture]).run([Message("user", [image, image])]))
    values = [value for span in telemetry.spans for value in attributes(span).values()]
    found = [
        part
        for value in values
        if isinstance(value, str) and value.startswith(("[", "{"))
        for part in parts_of(json.loads(value))
    ]
    assert len(found) >= 2
    assert {(part.get("modality"), part.get("mime_type")) for part in found} == {("image", "image/png")}


async def test_the_oldest_messages_go_first(telemetry: Captured) -> None:
    """A history that is too big loses its oldest messages, and their number is recorded."""
    history = [Message("user", f"{n} " + "x" * 1000) for n in range(100)]
    await within(Agent("a", model=ScriptedModel("done")).run("the question", history=history))
    for span in (telemetry.span("chat"), telemetry.span("invoke_agent")):
        kept = inputs(span)
        assert kept[-1]["parts"][0]["content"] == "the question"
        assert len(kept) + attributes(span)[semconv.CONTENT_OMITTED] == 101
        assert len(attributes(span)[semconv.INPUT_MESSAGES]) <= 32 * 1024


@pytest.mark.parametrize(
    ("general", "spans", "least", "most"),
    [
        ("1000", None, 400, 1000),
        (None, " 1000", 400, 1000),
        ("2000", "1000", 400, 1000),
        ("100", "2000", 1001, 2000),
        ("100", "", 8000, 32 * 1024),
        ("100", None, 0, 0),
        ("2000", "100", 0, 0),
    ],
)
async def test_an_attribute_limit_of_opentelemetry_cuts_no_json(
    monkeypatch: pytest.MonkeyPatch, general: str | None, spans: str | None, least: int, most: int
) -> None:
    """Recorded content stays valid JSON within OpenTelemetry's attribute limit, and is left out below 256."""
    limits = {"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": general, "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT": spans}
    for name, limit in limits.items():
        if limit is not None:
            monkeypatch.setenv(name, limit)
    with capture() as telemetry:
        await within(Agent("a", model=ScriptedModel("yes " * 2000)).run("why " * 2000))
    for span in (telemetry.span("chat"), telemetry.span("invoke_agent")):
        found = attributes(span)
        assert semconv.INPUT_DIGEST in found
        for name in (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES):
            content = found.get(name, "")
            assert least <= len(content) <= most
            assert not content or json.loads(content)


@pytest.mark.parametrize("mode", ["redacted", "metadata", "off"])
async def test_a_name_that_a_model_made_up_is_content(mode: Any) -> None:
    """A secret in a tool name that the model made up, or in a tool's description, is in no telemetry."""
    secret = "sk-abcdefghijklmnopqrstuvwxyz"

    @tool(description=f"Use {secret} for this.")
    def described() -> str:
        return "x"

    model = ScriptedModel([ToolCall(secret, {}), ToolCall("described", {})], "done")
    with capture(capture=CapturePolicy(mode)) as telemetry:
        await within(Agent("a", model=model, tools=[described]).run("go"))
    assert secret not in everything(telemetry)
    made_up, known = telemetry.find("execute_tool")
    name = "[redacted]" if mode == "redacted" else "_OTHER"
    assert made_up.name == f"execute_tool {name}"
    assert attributes(made_up)[semconv.TOOL_NAME] == name
    expected = "Use [redacted] for this." if mode == "redacted" else None
    assert attributes(known).get(semconv.TOOL_DESCRIPTION) == expected


async def test_redactors_see_identities_and_keys_that_are_secrets() -> None:
    """Redactors see the identity of a discovery and the keys of objects."""

    def mask_tenant(path: Sequence[str], value: Any) -> Any:
        return "[tenant]" if "tenant" in path else value

    policy = CapturePolicy(redactors=(*CapturePolicy().redactors, mask_tenant))
    model = ScriptedModel(ToolCall("look_up", {"word": "x", "sk-abcdefghijklmnopqrst": 1}), "done")
    with capture(capture=policy) as telemetry:
        await within(Agent("a", model=model, tools=[look_up]).run("go", identity=Identity(tenant="acme")))
    recorded = json.loads(attributes(telemetry.find("discover_tools")[0])[semconv.INPUT])
    assert recorded["identity"]["tenant"] == "[tenant]"
    spans = repr([attributes(span) for span in telemetry.spans])
    assert "sk-abc" not in spans
    assert "acme" not in spans


async def test_nothing_is_prepared_for_spans_that_nobody_records() -> None:
    """Redactors are not called if no SDK records the spans."""
    asked = []
    policy = CapturePolicy(redactors=(lambda path, value: asked.append(value),))
    agent = Agent("a", model=asking(2), tools=[look_up], telemetry=TelemetryOptions(capture=policy))
    assert (await within(agent.run("words"))).output == "done"
    assert asked == []


async def test_the_bound_of_a_span_holds_to_the_byte() -> None:
    """Content never exceeds the bound of a span by a byte."""
    policy = CapturePolicy("full", max_bytes=512, max_span_bytes=512)
    for length in range(100, 200):  # at some of these, what comes first fills the span
        with capture(capture=policy) as telemetry:
            agent = Agent("a", model=ScriptedModel("ok"), tools=[look_up], instructions="y" * 100)
            await within(agent.run("x" * length))
        assert telemetry.find("chat")
