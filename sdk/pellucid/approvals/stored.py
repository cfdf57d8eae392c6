"""Read stored checkpoints. Loads pydantic; imported when the first one is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import ValidationError

from pellucid.approvals.external import MAX_TIME, STORED_KEYS
from pellucid.errors import ConfigError

_ID: Final = re.compile(r"[0-9a-f]{32}")
_NAMES: Final = {key: name for name, key in STORED_KEYS.items()}


def read(kind: type, data: Mapping[str, Any], *, is_partial: bool) -> tuple[Any, str | None]:
    """Return the checkpoint of stored data, and its fault, if it is damaged; a part of one is only read.

    Raises:
        CheckpointError: a nested checkpoint is damaged.
    """
    checkpoint: Any = None
    try:
        checkpoint = _adapter(kind).validate_python({**data, **_external(data.get("external"))})
        return checkpoint, _fault(checkpoint) if not is_partial else None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        return checkpoint, f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except ConfigError as error:
        return checkpoint, str(error)
    except RecursionError:
        return checkpoint, "it is nested too deeply"


def _external(requests: object) -> dict[str, Any]:
    """Return the external requests with the names that their fields have in Python; nothing if they are damaged."""
    if not isinstance(requests, list) or not all(isinstance(request, Mapping) for request in requests):
        return {}
    return {"external": [{_NAMES.get(key, key): value for key, value in item.items()} for item in requests]}


def _fault(state: Any) -> str | None:
    """Return the fault of a checkpoint, or None.

    Raises:
        CheckpointError: a nested checkpoint is damaged.
        ConfigError: the messages or results are damaged.
    """
    if not _ID.fullmatch(state.id) or not state.messages or not (state.approvals or state.has_external):
        return "its id is invalid, or it has no messages, or nothing to wait for"
    if state.iteration < 1 or state.tool_calls < 0 or state.discoveries < 0:
        return "a counter is out of range"
    return _external_fault(state) or _mismatch(state)


def _external_fault(state: Any) -> str | None:
    """Return the fault of the calls of other processes, or None.

    Raises:
        ConfigError: the content of a result is damaged.
    """
    ids = [request.result_id for request in state.all_external]
    if len({*ids}) < len(ids):
        return "two external calls have the same result id"
    for request in state.external:
        _ = request.content_parts
        if request.result is not None and request.result.result_id != request.result_id:
            return f"the result of external call {request.result_id!r} has another id"
        if not all(0 <= time < MAX_TIME for time in (request.dispatched_at, request.expires_at or 0)):
            return f"a time of external call {request.result_id!r} is out of range"
    return None


def _mismatch(state: Any) -> str | None:
    """Return the inconsistency, or None: each call of the last message has one result or one pending approval."""
    last = state.conversation[-1]
    in_place = [request.tool_call_id for request in state.external if request.takes_place]
    if not (last.tool_calls or state.approvals or state.results or state.nested or in_place):
        return None  # the model has stopped, and gets results of earlier calls
    calls = {call.id: call.name for call in last.tool_calls if call.id}
    if last.role != "assistant" or len(calls) < len(last.tool_calls):
        return "its last message is not a model's answer with tool calls of unique ids"
    nested = [request.approval_id for inner in state.nested_checkpoints.values() for request in inner.approvals]
    own = [request for request in state.approvals if request.approval_id not in nested]
    requested = [request.approval_id for request in state.approvals]
    if len({*requested}) < len(requested) or len({*nested}) < len(nested) or not {*nested} <= {*requested}:
        return "its approvals do not match its calls and nested checkpoints one to one"
    accounted = [*state.known_results, *(request.tool_call_id for request in own), *state.nested, *in_place]
    if sorted(accounted) != sorted(calls) or len(state.known_results) < len(state.results):
        return "its calls do not match its results and pending approvals one to one"
    if other := next((request for request in own if calls[request.tool_call_id] != request.tool_name), None):
        return f"approval {other.approval_id!r} is for another tool than its call"
    return None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
