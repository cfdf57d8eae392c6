"""Phase 2: compose the request from the snapshot and the conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from pellucid.errors import ConfigError
from pellucid.messages import ProviderToolDefinition
from pellucid.models import ModelRequest, OutputSchema, Settings
from pellucid.models.facts import ModelFacts
from pellucid.run.state import Run
from pellucid.telemetry import COMPOSE, Boundary, boundary
from pellucid.tools.catalog import Catalog
from pellucid.types import JSONValue

if TYPE_CHECKING:
    from pellucid.telemetry.content import CapturedValue, Capturer

MAX_NAMES = 64
"""Maximum number of names of offered tools that a `compose_request` span records."""


async def compose(run: Run, catalog: Catalog, *, closing: bool = False) -> tuple[ModelRequest, Catalog]:
    """Return the request of this iteration and the catalogue that it offers; a `closing` request offers no tools.

    Raises:
        ToolNameCollision: two providers offer the same name, and the agent has `collisions="error"`.
        ConfigError: the model does not run a provider tool that is offered.
        PolicyHalt: the permission policy ended the run.
        InstructionsError: a function of the instructions failed.
        PellucidError: the check of the tools ended it.
    """
    with boundary(run.scope, COMPOSE, agent=run.scope.agent) as b:
        messages, selection, digest = run.conversation.messages, run.selection, catalog.digest
        b.capture_input(lambda c: c.facts({"catalog": digest, "messages": len(messages), "closing": closing}))
        if not closing:
            listed, catalog = catalog.bindings, await run.pausing.narrow(run, b, catalog)
            if (check := run.caller.check_tools) is not None:
                check(binding.tool for name, binding in listed.items() if name not in catalog.denied)
            _check_provider_tools(run.setup.models, catalog.provider_tools)
        is_new = selection.digest != catalog.digest
        if is_new and not closing:
            selection.add(catalog)
        selection.report_shadowed(b, catalog)
        instructions, varying = await _instructions(run, b)
        request = ModelRequest(
            instructions=instructions,
            messages=tuple(messages),
            tools=() if closing else catalog.definitions,
            settings=run.setup.settings,
            output=run.setup.output.schema if run.setup.output is not None else None,
        )
        if run.conversation.fitting is not None:
            request, catalog, varying = await run.conversation.fitting.fit(b, request, catalog, varying)
        counts = {"tool_tokens": 0 if closing else catalog.tokens, "tool_count": len(request.tools)}
        b.note(message_count=len(request.messages), catalog_digest=catalog.digest, **counts)

        def record(capturer: Capturer) -> CapturedValue:
            tools = "" if closing else catalog.digest
            b.note(digest=_digest(capturer, request, tools, run.setup.parameters))
            return capturer.facts({**_summary(request, names=is_new), **varying})

        b.capture_output(record)
        return request, catalog


async def _instructions(run: Run, b: Boundary) -> tuple[str | None, dict[str, JSONValue]]:
    """Return the instructions of the request, and what to record of those that vary."""
    if not (run.notices or run.setup.varying):
        return run.setup.instructions, {}
    from pellucid.run.instructions import evaluate

    return await evaluate(run, b)


def _check_provider_tools(models: Sequence[ModelFacts], tools: Sequence[ProviderToolDefinition]) -> None:
    """Check that the model, and each model that replaces it, runs the provider tools that are offered.

    Raises:
        ConfigError: a model does not run one of them.
    """
    for tool in tools:
        for model in models:
            if (tool.vendor, tool.type) not in model.provider_tools:
                raise ConfigError(
                    f"model {model.name!r} of {model.provider_name} cannot run the provider tool "
                    f"{tool.name!r} ({tool.vendor} {tool.type}); remove the tool, or use a model of {tool.vendor}"
                )


def digest_of_parameters(settings: Settings, output: OutputSchema | None) -> str:
    """Return a hash of an agent's settings and output schema, without `extra`, which may hold secrets."""
    public = {name: value for name, value in settings.items() if name != "extra"}
    schema = output.schema if output is not None else None
    content = json.dumps([public, schema], sort_keys=True, default=repr)
    return blake2b(content.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _digest(capturer: Capturer, request: ModelRequest, tools: str, parameters: str) -> str:
    """Return a hash of the whole request; only new messages are hashed again."""
    content = f"{request.instructions}\0{tools}\0{parameters}\0{capturer.digest(request.messages)}"
    return blake2b(content.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _summary(request: ModelRequest, *, names: bool) -> dict[str, JSONValue]:
    """Return the output to record: counts, and tool names when they are new; the content is on the `chat` span."""
    summary: dict[str, JSONValue] = {"messages": len(request.messages), "tool_count": len(request.tools)}
    if names:
        summary["tools"] = [tool.name for tool in request.tools[:MAX_NAMES]]
    return summary
