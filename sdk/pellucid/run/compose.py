"""Phase 2: put the request together from the snapshot and the conversation."""

from __future__ import annotations

import json
from hashlib import blake2b

from pellucid.models import ModelRequest, OutputSchema, Settings
from pellucid.run.state import Run
from pellucid.telemetry import COMPOSE, Recorded, boundary
from pellucid.telemetry.recording import Recorder
from pellucid.tools.catalog import Catalog
from pellucid.types import JSONValue

MOST_NAMES = 64
"""Names of offered tools that are recorded on a `compose_request` span."""


async def compose(run: Run, catalog: Catalog, *, closing: bool = False) -> tuple[ModelRequest, Catalog]:
    """Return the request of this iteration, and what of the catalogue is offered in it: nothing if it is `closing`.

    Raises:
        ToolNameCollision: two providers offer one name, and the agent's policy is to refuse that.
        PolicyHalt: the permission policy ended the run.
    """
    with boundary(run.scope, COMPOSE, agent=run.scope.agent) as b:
        messages, offering = run.conversation.messages, run.offering
        facts = {"catalog": catalog.digest, "messages": len(messages), "closing": closing}
        b.record_input(lambda recorder: recorder.facts(facts))
        if not closing:
            catalog = await offering.narrow(run.scope, b, catalog, messages)
        definitions = () if closing else catalog.definitions
        is_new = offering.digest != catalog.digest
        if is_new and not closing:
            offering.add(catalog)
        offering.report_shadowed(run.scope, b, catalog)
        request = ModelRequest(
            instructions=run.setup.instructions,
            messages=tuple(messages),
            tools=definitions,
            settings=run.setup.settings,
            output=run.setup.output.schema if run.setup.output is not None else None,
        )
        b.note(tool_tokens=0 if closing else catalog.tokens)
        b.note(tool_count=len(definitions), message_count=len(request.messages), catalog_digest=catalog.digest)

        def record(recorder: Recorder) -> Recorded:
            tools = "" if closing else catalog.digest
            b.note(digest=_digest(recorder, request, tools, run.setup.parameters))
            return recorder.facts(_summary(request, names=is_new))

        b.record_output(record)
        return request, catalog


def digest_of_parameters(settings: Settings, output: OutputSchema | None) -> str:
    """Return a hash of what is the same in all requests of an agent; `extra` is the vendor's, and may hold secrets."""
    told = {name: value for name, value in settings.items() if name != "extra"}
    schema = output.schema if output is not None else None
    content = json.dumps([told, schema], sort_keys=True, default=repr)
    return blake2b(content.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _digest(recorder: Recorder, request: ModelRequest, tools: str, parameters: str) -> str:
    """Return a hash of the whole request, which costs only what is new in the conversation."""
    content = f"{request.instructions}\0{tools}\0{parameters}\0{recorder.digest(request.messages)}"
    return blake2b(content.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _summary(request: ModelRequest, *, names: bool) -> JSONValue:
    """Return what is recorded as the output: counts, and names when they are new; the content is on the `chat` span."""
    summary: dict[str, JSONValue] = {"messages": len(request.messages), "tool_count": len(request.tools)}
    if names:
        summary["tools"] = [tool.name for tool in request.tools[:MOST_NAMES]]
    return summary
