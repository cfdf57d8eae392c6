"""Phase 2: put the request together from the snapshot and the conversation."""

from __future__ import annotations

from hashlib import blake2b

from pellucid.models import ModelRequest
from pellucid.run import Run
from pellucid.telemetry import COMPOSE, boundary
from pellucid.tools.catalog import Catalog
from pellucid.types import JSONValue

MOST_NAMES = 64
"""Names of offered tools that are recorded on a `compose_request` span."""


def compose(run: Run, catalog: Catalog, *, closing: bool = False) -> ModelRequest:
    """Return the request of this iteration; one without tools if the run is `closing`.

    Raises:
        ToolNameCollision: two providers offer one name.
    """
    with boundary(run, COMPOSE, agent=run.agent) as b:
        asked = {"catalog": catalog.digest, "messages": len(run.messages), "closing": closing}
        b.record_input(lambda recorder: recorder.facts(asked))
        definitions = () if closing else catalog.definitions
        run.offered.update(() if closing or run.defined == catalog.digest else catalog.bindings)
        request = ModelRequest(
            instructions=run.setup.instructions,
            messages=tuple(run.messages),
            tools=definitions,
        )
        if b.span.is_recording():
            tools = "" if closing else catalog.digest
            history = run.recorder.messages(request.messages).digest
            digest = blake2b(f"{run.setup.instructions}\0{tools}\0{history}".encode("utf-8", "replace"), digest_size=16)
            b.note(digest=digest.hexdigest(), catalog_digest=catalog.digest)
        b.note(tool_count=len(definitions), message_count=len(request.messages))
        b.record_output(lambda recorder: recorder.facts(_summary(request)))
        return request


def _summary(request: ModelRequest) -> JSONValue:
    """Return what is recorded as the output: names and counts; the content is on the `chat` span."""
    return {"tools": [tool.name for tool in request.tools[:MOST_NAMES]], "messages": len(request.messages)}
