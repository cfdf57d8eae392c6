"""One method of one path of the server, as OpenAPI describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pellucid.server.bodies import Body
from pellucid.server.calls import CallCancelBody, HeartbeatBody
from pellucid.server.openapi.schemas import TEXT, Schema, ref
from pellucid.server.operation import RetryBody
from pellucid.server.runs import CancelBody
from pellucid.server.scores import ScoreTokenBody

_EVENT: Final[Schema] = {
    "type": "object",
    "properties": {"id": TEXT, "event": TEXT, "data": TEXT},
    "required": ["event", "data"],
}
_OPTIONAL: Final = (CancelBody, RetryBody, HeartbeatBody, CallCancelBody, ScoreTokenBody)
_ERRORS: Final = {
    "400": "The request is not valid; `path` says where.",
    "401": "The token is missing or not valid.",
    "403": "The caller may not do this; the message's role, the page's origin or the host is refused.",
    "404": "There is no such run, call or conversation, or it is another one's.",
    "408": "The body did not arrive in time.",
    "413": "The body is too long.",
    "429": "The caller has sent too many requests; `Retry-After` says when to send another.",
    "503": "The store is not available, or the server shuts down.",
}
_BODY_ERRORS: Final = ("400", "408", "413")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path.

    Attributes:
        summary: Its effect, in one sentence.
        answers: Description and schema by status; a schema may be a media type.
        body: Shape of its body.
        parameters: Headers and query members.
        scheme: Name of the security scheme, if any.
    """

    summary: str
    answers: Mapping[str, tuple[str, str]]
    body: type[Body] | None = None
    parameters: tuple[Schema, ...] = ()
    scheme: Literal["caller", "call", ""] = "caller"
    errors: tuple[str, ...] = field(default=())

    def document(self, path: str) -> Schema:
        """Return the operation object."""
        has_id = "{" in path
        errors = {*self.errors, *(_BODY_ERRORS if self.body else ()), *(["404"] if has_id else [])}
        errors |= {"401", "403", "429", "503"} if self.scheme else {"403"}
        responses = {status: _response(text, schema) for status, (text, schema) in self.answers.items()}
        responses |= {status: _response(_ERRORS[status], "Error") for status in errors - responses.keys()}
        name = path.partition("{")[2].partition("}")[0]
        document: Schema = {
            "summary": self.summary,
            "parameters": [
                *([{"name": name, "in": "path", "required": True, "schema": TEXT}] if has_id else []),
                *self.parameters,
            ],
            "responses": dict(sorted(responses.items())),
            "security": [{self.scheme: []}] if self.scheme else [],
        }
        if self.body is not None:
            content = {"application/json": {"schema": ref(self.body.__name__)}}
            document["requestBody"] = {"content": content, "required": self.body not in _OPTIONAL}
        return document


def _response(description: str, schema: str) -> Schema:
    types = {"text/event-stream": _EVENT} if schema in ("stream", "run or stream") else {}
    if schema == "text":
        types = {"text/plain": TEXT}
    elif schema != "stream":
        types["application/json"] = ref("Run" if schema == "run or stream" else schema)
    return {"description": description, "content": {name: {"schema": value} for name, value in types.items()}}


def parameter(place: str, name: str, schema: Schema) -> Schema:
    """Return a parameter that may be left out; `place` is `query` or `header`."""
    return {"name": name, "in": place, "schema": schema}
