from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid import (
    Agent,
    CapturePolicy,
    ConfigError,
    DiscoveryError,
    DiscoveryProvider,
    ModelError,
    Tool,
    ToolCall,
    ToolError,
    semconv,
)
from pellucid.events import InferenceDelta
from pellucid.telemetry import DEFAULT_REDACTORS
from pellucid.telemetry.secrets.masking import MASK
from pellucid.testing import FakeHub, ScriptedModel
from pellucid_exporters.testing import Captured, capture, check_telemetry
from support.runs import attributes, everything, within

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pellucid.telemetry.capture import CaptureMode

pytestmark = pytest.mark.anyio

BEARER = "Bearer abcDEF123456secret"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"
DSN = "postgresql://app:hunter2secret@db.example/prod"
KEY = "sk-proj-abcdefghijklmnop1234"
CARD = "4111 1111 1111 1111"
PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\nMIIsecretsecret\n-----END PRIVATE KEY-----"

SHAPES = {
    BEARER: "abcDEF123456secret",
    JWT: JWT,
    DSN: "hunter2secret",
    KEY: KEY,
    CARD: CARD,
    PRIVATE_KEY: "MIIsecretsecret",
    "password=plainsecret": "plainsecret",
}
"""Texts, and the part of each that must not leave the process."""

CONTENT = (
    semconv.INPUT,
    semconv.OUTPUT,
    semconv.SYSTEM_INSTRUCTIONS,
    semconv.INPUT_MESSAGES,
    semconv.OUTPUT_MESSAGES,
    semconv.TOOL_DEFINITIONS,
    semconv.TOOL_CALL_ARGUMENTS,
    semconv.TOOL_CALL_RESULT,
    semconv.AGENT_CONFIGURATION,
)
DIGESTS = (semconv.INPUT_DIGEST, semconv.INPUT_BYTES, semconv.OUTPUT_DIGEST, semconv.OUTPUT_BYTES)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables that decide what is captured."""
    monkeypatch.delenv("PELLUCID_CAPTURE", raising=False)
    monkeypatch.delenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", raising=False)


@pytest.fixture(params=SHAPES.items(), ids=["bearer", "jwt", "dsn", "key", "card", "private key", "assignment"])
def secret(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return a text with a secret in it, and the secret."""
    given: tuple[str, str] = request.param
    return given


def returning(value: Any) -> Tool:
    """Return a tool that returns a value, or raises it."""

    async def run(arguments: Any, ctx: Any) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    return Tool(name="t", run=run)


async def run_everything(text: str) -> None:
    """Run an agent with a text in its input, instructions, arguments, result, progress and answer."""

    async def work(arguments: Any, ctx: Any) -> Any:
        ctx.progress({"at": text})
        return {"body": text, "list": [text]}

    model = ScriptedModel(ToolCall("work", {"note": text}), f"The answer is {text}")
    agent = Agent("a", model=model, instructions=f"Use {text}", tools=[Tool(name="work", run=work)])
    result = await within(agent.run(f"Here: {text}"))
    assert result.output == f"The answer is {text}"


# --- the default ------------------------------------------------------------------------------------------------------


async def test_a_secret_in_content_leaves_by_no_way(telemetry: Captured, secret: tuple[str, str]) -> None:
    """A secret in input, instructions, arguments, progress, result or answer is in no telemetry."""
    text, hidden = secret
    await run_everything(text)
    assert hidden not in everything(telemetry)
    assert MASK in attributes(telemetry.span("execute_tool"))[semconv.TOOL_CALL_RESULT]
    check_telemetry(telemetry)


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "Authorization",
        "api_key",
        "apiKey",
        "X-Api-Key",
        "cookie",
        "Set-Cookie",
        "client_secret",
        "accessToken",
    ],
)
async def test_what_lies_under_a_secret_key_is_masked(telemetry: Captured, key: str) -> None:
    """A value below a secret key is masked in arguments and results."""
    value = {"headers": {key: "harmless-looking"}, "ok": "visible"}

    async def work(arguments: Any, ctx: Any) -> Any:
        return value

    model = ScriptedModel(ToolCall("work", value), "done")
    await within(Agent("a", model=model, tools=[Tool(name="work", run=work)]).run("x"))
    assert "harmless-looking" not in everything(telemetry)
    found = attributes(telemetry.span("execute_tool"))
    masked = {"headers": {key: MASK}, "ok": "visible"}
    assert json.loads(found[semconv.TOOL_CALL_ARGUMENTS]) == json.loads(found[semconv.TOOL_CALL_RESULT]) == masked


async def test_a_secret_in_arguments_that_are_no_json_is_masked(telemetry: Captured) -> None:
    """A secret in arguments that are no JSON is masked."""
    await within(
        Agent("a", model=ScriptedModel(ToolCall("t", f'{{"note": "{KEY}'), "x"), tools=[returning("ok")]).run("y")
    )
    assert KEY not in everything(telemetry)


@pytest.mark.parametrize("make", [OSError, ToolError])
async def test_a_secret_in_a_tool_s_exception_is_masked(
    telemetry: Captured, secret: tuple[str, str], make: type[Exception]
) -> None:
    """A secret in a tool's exception is in no telemetry."""
    text, hidden = secret
    await within(Agent("a", model=ScriptedModel(ToolCall("t"), "x"), tools=[returning(make(text))]).run("y"))
    assert hidden not in everything(telemetry)
    assert telemetry.span("execute_tool").status.description is not None


async def test_a_secret_in_a_model_s_exception_is_masked(telemetry: Captured, secret: tuple[str, str]) -> None:
    """The caller gets the whole exception of a model, and a secret in it is in no telemetry."""
    text, hidden = secret
    with pytest.raises(ModelError) as caught:
        await within(Agent("a", model=ScriptedModel(ConnectionError(text))).run("y"))
    assert text in str(caught.value)
    assert hidden not in everything(telemetry)


async def test_a_secret_in_a_hub_s_exception_is_masked(telemetry: Captured, secret: tuple[str, str]) -> None:
    """A secret in a hub's exception is in no telemetry, also during the back-off and beside a stale list."""
    text, hidden = secret
    provider = DiscoveryProvider(FakeHub(faults=[ConnectionError(text)]), id="hub", clock=lambda: 0.0)
    for _ in range(2):
        with pytest.raises(DiscoveryError):
            await within(Agent("a", model=ScriptedModel(), providers=[provider]).run("y"))
    now = 0.0
    stale = DiscoveryProvider(
        FakeHub(faults=[None, ConnectionError(text)]), id="stale", ttl=1.0, stale_if_error=9.0, clock=lambda: now
    )
    agent = Agent("a", model=ScriptedModel("x", "x"), providers=[stale])
    await within(agent.run("y"))
    now = 2.0
    await within(agent.run("y"))
    assert [event.name for event in telemetry.events].count("tools.catalog_stale") == 1
    assert hidden not in everything(telemetry)


async def test_a_secret_in_a_cause_is_masked(telemetry: Captured) -> None:
    """A secret in the cause of an exception is in no telemetry."""

    async def work(arguments: Any, ctx: Any) -> Any:
        raise ValueError("could not connect") from OSError(f"refused: {DSN}")

    await within(Agent("a", model=ScriptedModel(ToolCall("t"), "x"), tools=[Tool(name="t", run=work)]).run("y"))
    [event] = telemetry.span("execute_tool").events
    assert "could not connect" in str(event.attributes)
    assert "hunter2secret" not in everything(telemetry)


async def test_a_secret_in_a_listener_s_exception_is_masked(telemetry: Captured) -> None:
    """A secret in a listener's exception is in no telemetry."""

    def listen(event: Any) -> None:
        raise OSError(DSN)

    agent = Agent("a", model=ScriptedModel("x"))
    agent.on("run.started", listen)
    await within(agent.run("y"))
    assert [event.name for event in telemetry.events].count("telemetry.error") == 1
    assert "hunter2secret" not in everything(telemetry)


async def test_names_that_a_model_invents_are_no_place_for_secrets(telemetry: Captured) -> None:
    """A tool name that the model made up is recorded only in part and is no label."""
    await within(Agent("a", model=ScriptedModel(ToolCall("x" * 1000), "done")).run("y"))
    assert "x" * 100 not in repr([attributes(span)[semconv.TOOL_NAME] for span in telemetry.find("execute_tool")])
    assert all("xxx" not in repr(point.attributes) for point in telemetry.metrics)


@dataclass
class Names:
    """A redactor that cannot be hashed."""

    known: list[str]

    def __call__(self, path: Any, value: Any) -> Any:
        """Mask the names that are known."""
        for name in self.known:
            value = value.replace(name, "[name]") if isinstance(value, str) else value
        return value


@pytest.mark.parametrize("form", [tuple, list])
async def test_redactors_can_be_added(form: Callable[[list[Any]], Sequence[Any]]) -> None:
    """Any sequence of callables may redact, and each gets the keys and the value."""
    redactors = form([*DEFAULT_REDACTORS, Names(["Ann"])])
    with capture(capture=CapturePolicy(redactors=redactors)) as telemetry:
        agent = Agent("a", model=ScriptedModel("Hi, Ann."), tools=[Tool(name="greet", run=lambda _a, _c: "")])
        await within(agent.run("I am Ann."))
    assert "Ann" not in everything(telemetry)
    assert "Hi, [name]." in attributes(telemetry.span("chat"))[semconv.OUTPUT_MESSAGES]
    assert "greet" in attributes(telemetry.span("discover_tools"))[semconv.OUTPUT]
    assert "greet" in attributes(telemetry.span("chat"))[semconv.TOOL_DEFINITIONS]


# --- the other modes --------------------------------------------------------------------------------------------------


async def test_full_records_content_as_it_is() -> None:
    """Mode `full` records content without masking it."""
    with capture(capture=CapturePolicy("full")) as telemetry:
        await run_everything(KEY)
    assert KEY in attributes(telemetry.span("execute_tool"))[semconv.TOOL_CALL_ARGUMENTS]


@pytest.mark.parametrize("mode", ["redacted", "metadata", "off"])
async def test_the_reader_of_a_stream_gets_the_answer_in_every_mode(mode: CaptureMode) -> None:
    """The reader of a stream gets the whole answer in every mode."""
    with capture(capture=CapturePolicy(mode)):
        async with Agent("a", model=ScriptedModel(f"Use {KEY}")).stream("x") as events:
            with anyio.fail_after(60):
                pieces = [event.content async for event in events if isinstance(event, InferenceDelta)]
    assert "".join(pieces) == f"Use {KEY}"


@pytest.mark.parametrize(("mode", "heard"), [("full", KEY), ("redacted", "[redacted]"), ("metadata", ""), ("off", "")])
async def test_others_hear_the_pieces_of_a_stream_as_the_policy_allows(mode: CaptureMode, heard: str) -> None:
    """Listeners get the pieces of a stream redacted or empty, as the policy says."""
    pieces: list[str] = []
    with capture(capture=CapturePolicy(mode)):
        agent = Agent("a", model=ScriptedModel(KEY))
        agent.on("inference.delta", lambda event: pieces.append(event.content))
        async with agent.stream("x") as events:
            with anyio.fail_after(60):
                assert [event async for event in events]
    assert "".join(pieces) == heard


async def test_metadata_records_no_content() -> None:
    """Mode `metadata` records digests and sizes without content."""
    with capture(capture=CapturePolicy("metadata")) as telemetry:
        await run_everything("innocent words")
    assert "innocent" not in everything(telemetry)
    for span in telemetry.spans:
        found = attributes(span)
        assert not found.keys() & set(CONTENT)
        assert found.keys() >= set(DIGESTS)
    check_telemetry(telemetry)


@pytest.mark.parametrize("mode", ["metadata", "off"])
async def test_without_content_there_is_no_text_of_errors(mode: CaptureMode) -> None:
    """Modes without content record the type of an error but not its text."""
    with capture(capture=CapturePolicy(mode)) as telemetry:
        tools = [returning(OSError("innocent words"))]
        agent = Agent("a", model=ScriptedModel(ToolCall("t"), OSError("innocent words")), tools=tools)
        agent.on("run.started", lambda event: [][len("innocent words")])
        with pytest.raises(ModelError):
            await within(agent.run("y"))
        provider = DiscoveryProvider(FakeHub(faults=[OSError("innocent words")]), id="hub")
        with pytest.raises(DiscoveryError):
            await within(Agent("a", model=ScriptedModel(), providers=[provider]).run("y"))
    assert "innocent" not in everything(telemetry)
    assert attributes(telemetry.span("execute_tool"))[semconv.ERROR_TYPE] == "OSError"
    check_telemetry(telemetry)


async def test_off_records_nothing_of_input_and_output() -> None:
    """Mode `off` records neither content nor digests nor sizes."""
    with capture(capture=CapturePolicy("off")) as telemetry:
        await run_everything("innocent words")
    assert "innocent" not in everything(telemetry)
    for span in telemetry.spans:
        assert not attributes(span).keys() & {*CONTENT, *DIGESTS}
    assert telemetry.histogram(semconv.TOOL_DURATION).count == 1
    check_telemetry(telemetry)


@pytest.mark.parametrize(
    ("variables", "shows"),
    [
        ({"PELLUCID_CAPTURE": "full"}, True),
        ({"PELLUCID_CAPTURE": " Metadata "}, False),
        ({"PELLUCID_CAPTURE": "off"}, False),
        ({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}, True),
        ({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"}, True),
        ({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_AND_EVENT"}, True),
        ({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "false"}, False),
        ({"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "NO_CONTENT"}, False),
        ({"PELLUCID_CAPTURE": "off", "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true"}, False),
    ],
)
async def test_the_environment_decides_where_the_code_does_not(
    telemetry: Captured, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], *, shows: bool
) -> None:
    """`PELLUCID_CAPTURE` decides about content before the standard variable does."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    await run_everything(f"innocent words {KEY}")
    assert ("innocent" in everything(telemetry)) is shows
    assert (KEY in everything(telemetry)) is shows


async def test_an_environment_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown value in the environment is refused."""
    monkeypatch.setenv("PELLUCID_CAPTURE", "redcated")
    with pytest.raises(ConfigError, match="redcated"):
        await within(Agent("a", model=ScriptedModel("x")).run("y"))


async def test_the_decision_is_frozen_when_a_run_starts(telemetry: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that changes during a run does not change what the run records."""

    async def work(arguments: Any, ctx: Any) -> str:
        monkeypatch.setenv("PELLUCID_CAPTURE", "full")
        return KEY

    await within(Agent("a", model=ScriptedModel(ToolCall("t"), "x"), tools=[Tool(name="t", run=work)]).run("y"))
    assert KEY not in everything(telemetry)
