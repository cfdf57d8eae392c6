"""Phase 2: put the request together from the snapshot and the conversation."""

from __future__ import annotations

import json
from hashlib import blake2b

from pellucid.models import ModelRequest, OutputSchema, Settings
from pellucid.run.state import Run
from pellucid.telemetry import COMPOSE, Boundary, Recorded, boundary
from pellucid.telemetry.recording import Recorder
from pellucid.tools.catalog import Catalog
from pellucid.tools.collisions import tell_shadowed
from pellucid.types import JSONValue

MOST_NAMES = 64
"""Names of offered tools that are recorded on a `compose_request` span."""


async def compose(run: Run, catalog: Catalog, *, closing: bool = False) -> tuple[ModelRequest, Catalog]:
    """Return the request of this iteration, and what of the catalogue is offered in it: nothing if it is `closing`.

    Raises:
        ToolNameCollision: two providers offer one name, and the agent's policy is to refuse that.
        PolicyHalt: the permission policy ended the run.
    """
    with boundary(run, COMPOSE, agent=run.agent) as b:
        asked = {"catalog": catalog.digest, "messages": len(run.messages), "closing": closing}
        b.record_input(lambda recorder: recorder.facts(asked))
        if not closing:
            catalog = await offer(run, b, catalog)
        definitions = () if closing else catalog.definitions
        is_new = run.offering != catalog.digest
        if is_new and not closing:
            run.offering = catalog.digest
            run.offered.update(catalog.bindings)
        if catalog.shadowed:
            b.note(shadowed=len(catalog.shadowed))
            run.shadowed = tell_shadowed(run, b.span.get_span_context(), catalog.shadowed, run.shadowed)
        request = ModelRequest(
            instructions=run.setup.instructions,
            messages=tuple(run.messages),
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


async def offer(run: Run, b: Boundary, catalog: Catalog) -> Catalog:
    """Return what of a catalogue the model may have now.

    Raises:
        ToolNameCollision: two providers offer one name, and the agent's policy is to refuse that.
        PolicyHalt: the permission policy ended the run.
    """
    catalog.check()
    for narrow in (_permit, _pin, _activate):
        catalog = await narrow(run, b, catalog)
    return catalog


async def _permit(run: Run, b: Boundary, catalog: Catalog) -> Catalog:
    """Leave out what the policy denies; it is asked once about each catalogue."""
    permissions = run.setup.permissions
    if permissions is None:
        return catalog
    if run.permitted is None or run.permitted[0] is not catalog:
        span = b.span.get_span_context()
        offered = await permissions.offer(run, span, catalog, run.denied, run.offers.metas)
        run.permitted = (catalog, offered)
    b.note(denied=len(run.permitted[1].denied))
    return run.permitted[1]


async def _pin(run: Run, b: Boundary, catalog: Catalog) -> Catalog:
    """Leave out what is no longer what the model was given, if the agent pins tools."""
    return run.pins.check(run, b, catalog, run.messages)


async def _activate(run: Run, b: Boundary, catalog: Catalog) -> Catalog:
    """Leave out lazy tools that are not active."""
    return await run.offers.of(run, b.span.get_span_context(), catalog, run.messages)


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
