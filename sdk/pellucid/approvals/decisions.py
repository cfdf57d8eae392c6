"""Approval requests for tool calls, and decisions about them."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType
from typing import Literal

from pellucid.errors import ConfigError
from pellucid.types import JSONObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A tool call that waits for a person to decide.

    Attributes:
        approval_id: Id for a `Decision` to refer to.
        tool_call_id: The model's id of the call.
        tool_name: Name of the tool.
        arguments: Arguments for the tool, complete and not redacted.
        expires_at: Expiry, in seconds since the epoch; None if it never expires.
        requested_at: Seconds since the epoch.
        reason: Reason given by the permission policy, if any.
        input_schema: JSON Schema of the arguments, which changed ones must fit; None unless the run is durable. Of an
            elicitation, that of the answer.
        elicitation: `form` or `url` if the tool's server asks a person for input, with the `reason` as question; None
            for the approval of a call. A form is answered by `Decision(arguments=)`.
        url: Address that a person must open, of an elicitation by `url`.
        annotations: Annotations of the tool, such as its `title`, with the names of MCP; None if it has none.
            These are hints: its provider may lie.
    """

    approval_id: str
    tool_call_id: str
    tool_name: str
    arguments: JSONObject
    expires_at: float | None = None
    requested_at: float = 0.0
    reason: str | None = None
    input_schema: JSONObject | None = None
    elicitation: Literal["form", "url"] | None = None
    url: str | None = None
    annotations: JSONObject | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's decision about an approval request.

    Attributes:
        approval_id: Id of the request.
        approved: Whether the call may run.
        reason: Reason for a denial, for the model.
        arguments: Arguments that replace the model's. They must fit the tool's schema; a note in the result tells the
            model. For an elicitation, the answer, which must fit its schema.
        decided_by: Person who decided; recorded in telemetry.

    Raises:
        ConfigError: a value has another type; only `True` approves.
    """

    approval_id: str
    approved: bool
    reason: str | None = None
    arguments: JSONObject | None = None
    decided_by: str | None = None

    def __post_init__(self) -> None:
        for name, kinds, expected in (
            ("approval_id", str, "the id of an ApprovalRequest"),
            ("approved", bool, "True or False"),
            ("reason", (str, NoneType), "a text, or None"),
            ("arguments", (dict, NoneType), "a dictionary, or None for the model's arguments"),
            ("decided_by", (str, NoneType), "a text, or None"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kinds):
                raise ConfigError(f"Decision({name}={value!r}): must be {expected}")
