"""Read stored checkpoints. Loads pydantic; imported when the first one is read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pydantic import TypeAdapter

from pellucid.approvals.external import STORED_KEYS

_NAMES: Final = {key: name for name, key in STORED_KEYS.items()}


def validated(kind: type, data: Mapping[str, Any]) -> Any:
    """Return the checkpoint of stored data.

    Raises:
        ValidationError: the data is damaged.
    """
    return _adapter(kind).validate_python({**data, **_external(data.get("external"))})


def _external(requests: object) -> dict[str, Any]:
    """Return the external requests with the names that their fields have in Python; nothing if they are damaged."""
    if not isinstance(requests, list) or not all(isinstance(request, Mapping) for request in requests):
        return {}
    return {"external": [{_NAMES.get(key, key): value for key, value in item.items()} for item in requests]}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
