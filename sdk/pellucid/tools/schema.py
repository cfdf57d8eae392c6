"""Validation against a JSON Schema: of the arguments that a model wrote, and of the results of tools."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, ClassVar

from pellucid.types import JSONObject, JSONValue

MAX_ISSUES = 10
"""Maximum number of issues reported for one set of arguments; a model needs no more to correct itself."""


_MAX_STEPS = 10_000
"""Backtracking steps of one pattern in one text, half a millisecond; patterns of other kinds take none."""


class Validator:
    """Validator of arguments against a JSON Schema (drafts 4 to 2020-12).

    Raises:
        ValueError: the schema is invalid, does not describe an object, or has references to other documents.
    """

    whole: ClassVar[str] = "arguments"

    def __init__(self, schema: object) -> None:
        import jsonschema_rs

        try:
            self._validator = jsonschema_rs.validator_for(
                self._checked(schema),
                mask="the value",
                retriever=_refuse,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_STEPS),
            )
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise ValueError(str(error).split("\n", 1)[0]) from error

    def _checked(self, schema: object) -> JSONObject:
        """Return a schema if it describes an object."""
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise ValueError('the schema must be a JSON object with "type": "object"')
        return schema

    def issues(self, value: JSONValue) -> Sequence[str]:
        """Return the issues of a value, one line each with the path and without values; empty if it is valid."""
        if self._validator.is_valid(value):
            return ()
        try:
            errors = list(islice(self._validator.iter_errors(value), MAX_ISSUES))
        except UnicodeEncodeError:
            return (f"{self.whole}: a string contains an unpaired surrogate, which is not a character",)
        return [f"{path_of(error.instance_path, self.whole)}: {error.message}" for error in errors]


class OutputValidator(Validator):
    """Validator of results against a JSON Schema, which may be of any type.

    Raises:
        ValueError: the schema is invalid, or has references to other documents.
    """

    whole = "result"

    def _checked(self, schema: object) -> JSONObject:
        if not isinstance(schema, dict):
            raise ValueError("the schema must be a JSON object")  # noqa: TRY004  (as for other broken schemas)
        return schema


def path_of(location: Sequence[str | int], whole: str = Validator.whole) -> str:
    """Return the path of a value as text; `whole` if it is not inside of another."""
    return ".".join(str(key) for key in location) or whole


def _refuse(uri: str) -> Any:
    """Refuse to fetch another schema: schemas come from hubs and are not trusted."""
    raise ValueError(f"the schema refers to {uri!r}; only references within the schema are allowed")
