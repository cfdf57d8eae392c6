"""Validation of the arguments that a model wrote, against a JSON Schema."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from pellucid.types import JSONObject

MAX_ISSUES = 10
"""Maximum number of issues reported for one set of arguments; a model needs no more to correct itself."""


class Validator:
    """Validator of arguments against a JSON Schema (drafts 4 to 2020-12).

    Raises:
        ValueError: the schema is invalid, does not describe an object, or has references to other documents.
    """

    def __init__(self, schema: object) -> None:
        import jsonschema_rs

        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise ValueError('the schema must be a JSON object with "type": "object"')
        try:
            self._validator = jsonschema_rs.validator_for(schema, mask="the value", retriever=_refuse)
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise ValueError(str(error).split("\n", 1)[0]) from error

    def issues(self, arguments: JSONObject) -> Sequence[str]:
        """Return the issues of `arguments`, one line each and without values; empty if the arguments are valid."""
        if self._validator.is_valid(arguments):
            return ()
        try:
            errors = list(islice(self._validator.iter_errors(arguments), MAX_ISSUES))
        except UnicodeEncodeError:
            return ("arguments: a string contains an unpaired surrogate, which is not a character",)
        return [f"{path_of(error.instance_path)}: {error.message}" for error in errors]


def path_of(location: Sequence[str | int]) -> str:
    """Return the path of an argument as text."""
    return ".".join(str(key) for key in location) or "arguments"


def _refuse(uri: str) -> Any:
    """Refuse to fetch another schema: schemas come from hubs and are not trusted."""
    raise ValueError(f"the schema refers to {uri!r}; only references within the schema are allowed")
