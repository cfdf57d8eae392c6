"""OpenAPI 3.1 document of the server, from the bodies that its endpoints read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from pydantic.json_schema import models_json_schema

from pellucid.server.bodies import Body
from pellucid.server.calls import CallCancelBody, CompleteBody, HeartbeatBody, ProgressBody
from pellucid.server.openapi.operation import Operation
from pellucid.server.openapi.paths import CALLS, METRICS, OPERATOR, PROBES, RUN, RUNS, SCORE, SCORE_TOKEN
from pellucid.server.openapi.schemas import SCHEMAS, Schema
from pellucid.server.operation import RetryBody
from pellucid.server.runs import ApprovalsBody, CancelBody
from pellucid.server.scores import ScoreBody, ScoreTokenBody
from pellucid.server.submissions import RunBody, SubmitBody
from pellucid.version import __version__

DIALECT: Final = 2
"""Version of the names of JSON members; 1 had events and usage in snake_case, and `arguments` in decisions."""

_BODIES: Final[tuple[type[Body], ...]] = (
    SubmitBody,
    ApprovalsBody,
    CancelBody,
    CompleteBody,
    HeartbeatBody,
    ProgressBody,
    CallCancelBody,
    RetryBody,
    ScoreBody,
    ScoreTokenBody,
)


def document_without_store(*, has_metrics: bool) -> Schema:
    """Return the document of a server without a store.

    Args:
        has_metrics: Whether there is `/metrics`.
    """
    return _document("Runs of agents.", [*_probes(has_metrics=has_metrics), ("/runs", "post", RUN)], [RunBody])


def document(*, has_calls: bool, has_metrics: bool) -> Schema:
    """Return the document of a server of durable runs.

    Args:
        has_calls: Whether other processes can return results.
        has_metrics: Whether there is `/metrics`.
    """
    runs = [(path, method, operation) for path, (method, operation) in RUNS.items()]
    operations = [*_probes(has_metrics=has_metrics), *runs, *OPERATOR, ("/runs/{run_id}/scores", "post", SCORE)]
    if has_calls:
        operations.append(("/runs/{run_id}/scores/token", "post", SCORE_TOKEN))
        operations += [(f"/async-tools/{{result_id}}/{name}", "post", operation) for name, operation in CALLS.items()]
    return _document("Durable runs of agents.", operations, _BODIES)


def _probes(*, has_metrics: bool) -> list[tuple[str, str, Operation]]:
    operations = {**PROBES, "/metrics": METRICS} if has_metrics else PROBES
    return [(path, "get", operation) for path, operation in operations.items()]


def _document(summary: str, operations: Iterable[tuple[str, str, Operation]], shapes: Sequence[type[Body]]) -> Schema:
    _, bodies = models_json_schema(
        [(body, "validation") for body in shapes], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, Schema] = {}
    for path, method, operation in operations:
        paths.setdefault(path, {})[method] = operation.document(path)
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pellucid", "version": __version__, "summary": summary, "x-dialect": DIALECT},
        "paths": paths,
        "components": {
            "schemas": {**bodies["$defs"], **SCHEMAS},
            "securitySchemes": {
                "caller": {**bearer, "description": "A caller of runs; the application may use another scheme."},
                "call": {**bearer, "description": "`ctx.external.token`, for one call."},
            },
        },
    }
