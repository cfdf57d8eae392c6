"""The agent of a recorded run, as far as a replay needs it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from pellucid import semconv
from pellucid.agent import Agent, configuration_of
from pellucid.context import DiscoveryContext, Limits
from pellucid.errors import ConfigError
from pellucid.messages import load_messages
from pellucid.models import FallbackModel, Model, ModelRequest, ModelResponse, OutputSchema, Settings, StreamItem
from pellucid.run.compose import digest_of_parameters
from pellucid.run.configuration import RECORDED_LIMITS
from pellucid.run.state import Setup
from pellucid.run.structured_output import Mismatch, Output, answer_text, prompted, repair_prompt
from pellucid.telemetry.phases import SETTINGS
from pellucid.tools import Tool
from pellucid.tools.schema import Validator
from pellucid.types import JSONObject
from pellucid_replay import contents
from pellucid_replay.tape import TapedSpan, TapeError
from pellucid_replay.taped_run import TapedRun

_REMEDY = "pass the agent: replay(agent, tape), or --agent module:name"


def rebuilt_setup(passes: Sequence[TapedRun]) -> Setup:
    """Return the configuration of an agent that can replay a run, and do nothing else.

    Args:
        passes: The run, after those that it continues.

    Raises:
        TapeError: the run depended on code of its agent that a recording does not have, or its record is damaged.
    """
    taped = passes[0]
    try:
        return _rebuilt(taped, passes)
    except (KeyError, TypeError) as error:
        raise contents.lacks(taped.root, "has a configuration or instructions that cannot be read") from error


def _rebuilt(taped: TapedRun, passes: Sequence[TapedRun]) -> Setup:
    known = taped.configuration
    spans = [span for run in passes for span in run.spans]
    if known["skills"]:
        raise TapeError(f"run {taped.root.run_id} used skills, which the recording does not have; {_REMEDY}")
    if any(span.get(semconv.APPROVAL_OUTCOME) == "awaiting" for span in spans):
        raise TapeError(f"run {taped.root.run_id} has an agent as a tool, which waited for a person; {_REMEDY}")
    if any({semconv.PERMISSION, semconv.COMPOSE_DENIED} & span.attributes.keys() for span in spans):
        raise TapeError(f"run {taped.root.run_id} had a permission policy, which is code; {_REMEDY}")
    output = _RebuiltOutput(known["output_schema"], spans) if "output_schema" in known else None
    instructions, is_native = _instructions_of(taped, output)
    requested = {name: taped.root.get(attribute) for name, attribute in SETTINGS.items() if name != "output_type"}
    settings = cast("Settings", {name: value for name, value in requested.items() if value is not None})
    agent = Agent(
        taped.agent,
        model=_model_of([span for run in passes for span in run.chats], is_native=is_native),
        instructions=instructions,
        settings=settings,
        providers=[_AbsentProvider(item["id"], item["kind"]) for item in known["providers"]],
        limits=_limits(known["limits"]),
        description=taped.root.get(semconv.AGENT_DESCRIPTION),
        collisions=known["collisions"],
        registry_mode=known["registry_mode"],
        pin=known["pin"],
    )
    schema = output.schema if output is not None else None
    setup = configuration_of(agent).setup
    return replace(setup, output=output, parameters=digest_of_parameters(settings, schema))


def _limits(known: Mapping[str, Any]) -> Limits:
    """Return recorded limits, which may have been recorded under the names of their fields."""
    names = {recorded: name for name, recorded in RECORDED_LIMITS.items()}
    return Limits(**{names.get(name, name): limit for name, limit in {**known}.items()})


class _RebuiltOutput(Output[Any]):
    """Output type of which only the JSON Schema is known; its values are JSON."""

    def __init__(self, schema: JSONObject, spans: Sequence[TapedSpan]) -> None:
        self.name = "output"
        self.schema = OutputSchema(name="output", schema=schema)
        self._validator = Validator(schema)
        self._problems = dict(_problems_in(spans))

    def parse(self, text: str) -> Any:
        """Return the value of an answer.

        Raises:
            Mismatch: it is not of the type.
        """
        if text in self._problems:
            raise Mismatch(self._problems[text])
        try:
            value = json.loads(text)
        except ValueError as error:
            raise Mismatch(str(error)) from error
        if issues := self._validator.issues(value):
            raise Mismatch("; ".join(issues))
        return value


def _problems_in(spans: Sequence[TapedSpan]) -> Iterator[tuple[str, str]]:
    """Yield the answers that the output type did not accept, each with the problem that the model read."""
    before, after = repair_prompt("\0").split("\0")
    for span in spans:
        messages = contents.parsed(span, semconv.INPUT_MESSAGES, list) if span.phase == semconv.INFERENCE else None
        for answer, reply in pairwise(load_messages(messages or [])):
            if answer.role == "assistant" and reply.text.startswith(before) and reply.text.endswith(after):
                yield answer_text(answer), reply.text.removeprefix(before).removesuffix(after)


def _instructions_of(taped: TapedRun, output: Output[Any] | None) -> tuple[str | None, bool]:
    """Return the agent's own instructions, and whether the vendor got the schema of the output separately."""
    chat = next((span for span in taped.chats if semconv.SYSTEM_INSTRUCTIONS in span.attributes), None)
    parts = contents.parsed(chat, semconv.SYSTEM_INSTRUCTIONS, list) if chat is not None else None
    if parts is None:
        return None, True
    instructions = "".join(str(part["content"]) for part in parts)
    prompt = prompted(ModelRequest(output=output.schema)).instructions if output is not None else None
    is_native = not prompt or not instructions.endswith(prompt)
    if prompt and not is_native:
        instructions = instructions.removesuffix(prompt).removesuffix("\n\n")
    notices = {str(span.get(semconv.DISCOVERY_NOTICE) or "") for span in taped.spans} - {""}
    while (notice := next(filter(instructions.endswith, notices), None)) is not None:
        instructions = instructions.removesuffix(notice).removesuffix("\n\n")
    return instructions or None, is_native


def _model_of(chats: Sequence[TapedSpan], *, is_native: bool) -> Model:
    """Return a model, or several to fall back to, under the names of those that were called.

    Raises:
        TapeError: their order depended on rules.
    """
    attempts: list[list[TapedSpan]] = []
    for chat in chats:
        if chat.get(semconv.ATTEMPT) in (None, 1) or not attempts:
            attempts.append([])
        attempts[-1].append(chat)
    longest: list[TapedSpan] = max(attempts, key=len, default=[])
    names = [_name(span) for span in longest]
    if any([_name(span) for span in group] != names[: len(group)] for group in attempts):
        raise TapeError(f"run {chats[0].run_id} chose among models by rules, which are code; {_REMEDY}")
    models = [_AbsentModel(span.attributes, is_native=is_native) for span in longest]
    if len(models) < 2:  # noqa: PLR2004  (nothing to fall back to)
        return models[0] if models else _AbsentModel({}, is_native=is_native)
    kinds = {span.get(semconv.ERROR_KIND) for group in attempts for span in group[:-1]} - {None}
    return FallbackModel(*models, on=kinds)


def _name(span: TapedSpan) -> tuple[Any, Any]:
    return span.get(semconv.PROVIDER_NAME), span.get(semconv.REQUEST_MODEL)


class _AbsentModel:
    """Model of which only the name is known."""

    def __init__(self, attributes: Mapping[str, Any], *, is_native: bool) -> None:
        self.name = str(attributes.get(semconv.REQUEST_MODEL, "unknown"))
        self.provider_name = str(attributes.get(semconv.PROVIDER_NAME, "unknown"))
        self.server_address = attributes.get(semconv.SERVER_ADDRESS)
        self.server_port = attributes.get(semconv.SERVER_PORT)
        self.native_output = is_native

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        yield await self.generate(request)

    async def generate(self, request: ModelRequest) -> ModelResponse:
        raise ConfigError(f"the replay continues live, but model {self.name!r} is only recorded; {_REMEDY}")


class _AbsentProvider:
    """Provider of which only the id and kind are known."""

    def __init__(self, provider_id: str, kind: str) -> None:
        self.id = provider_id
        self.kind = kind

    def list_tools(self, ctx: DiscoveryContext) -> Sequence[Tool]:
        raise ConfigError(f"the replay continues live, but provider {self.id!r} is only recorded; {_REMEDY}")
