"""Validation against a JSON Schema: of the arguments that a model wrote, and of the results of tools."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from pellucid.types import JSONObject, JSONValue

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

    from pellucid.tools.steps import Steps

MAX_ISSUES = 10
"""Maximum number of issues reported for one set of arguments; a model needs no more to correct itself."""

_MAX_BACKTRACKS = 10_000
"""Backtracking steps of one pattern in one text, half a millisecond; patterns of other kinds take none."""


class Validator:
    """Validator of arguments against a JSON Schema (drafts 4 to 2020-12).

    Raises:
        ValueError: the schema is invalid, does not describe an object, or has references to other documents.
    """

    whole: ClassVar[str] = "arguments"
    _small: ClassVar[int] = 4_096
    """Characters of a schema whose checks need no count."""

    def __init__(self, schema: object) -> None:
        import jsonschema_rs

        self._schema = self._checked(schema)
        try:
            self._validator = jsonschema_rs.validator_for(
                self._schema,
                mask="the value",
                retriever=_refuse,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKS),
            )
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            raise ValueError(str(error).split("\n", 1)[0]) from error

    def _checked(self, schema: object) -> JSONObject:
        """Return a schema if it describes an object."""
        if not isinstance(schema, dict) or schema.get("type") != "object":
            raise ValueError('the schema must be a JSON object with "type": "object"')
        return schema

    @cached_property
    def _is_simple(self) -> bool:
        """True if a check takes at most 256 evaluations for each value: the schema is small and without references."""
        text = repr(self._schema)
        return len(text) < self._small and "$" not in text and "unevaluated" not in text

    @cached_property
    def _steps(self) -> Steps:
        from pellucid.tools.steps import Steps

        return Steps(self._schema)

    @cached_property
    def accepts(self) -> Callable[[JSONValue], bool]:
        """Function that returns whether a value is valid for certain; `issues` checks other values."""
        return self._validator.is_valid if self._is_simple else lambda _value: False

    def issues(self, value: JSONValue) -> Sequence[str]:
        """Return the issues of a value, one line each with the path and without values; empty if it is valid."""
        if not self._is_simple and not self._steps.are_few(value):
            from pellucid.tools.steps import MAX_STEPS, scalars_first

            value = scalars_first(value)
            if self._steps.exceed(MAX_STEPS, value, is_quick=True):
                return (f"{self.whole}: checking takes too many steps; simplify the schema, or send a simpler value",)
        return () if self._validator.is_valid(value) else self._listed(value)

    def _listed(self, value: JSONValue) -> Sequence[str]:
        """Return the issues of a value that is invalid; of one with many parts the first, if that takes few steps."""
        from pellucid.tools.steps import MAX_STEPS_OF_ISSUES

        errors: Callable[[JSONValue], Iterator[ValidationError]] = self._validator.iter_errors
        if self._steps.exceed(MAX_STEPS_OF_ISSUES, value, is_quick=False):
            if self._has_alternatives:  # whose misfits the library collects
                return (f"{self.whole}: the schema does not allow it; finding where takes too many steps",)
            errors = self._first_error
        try:
            found = list(islice(errors(value), MAX_ISSUES))
        except UnicodeEncodeError:
            return (f"{self.whole}: a string contains an unpaired surrogate, which is not a character",)
        return [f"{path_of(error.instance_path, self.whole)}: {error.message}" for error in found]

    @cached_property
    def _has_alternatives(self) -> bool:
        text = repr(self._schema)
        return "anyOf" in text or "oneOf" in text

    def _first_error(self, value: JSONValue) -> Iterator[ValidationError]:
        from jsonschema_rs import ValidationError

        try:
            self._validator.validate(value)
        except ValidationError as error:
            yield error


class OutputValidator(Validator):
    """Validator of results against a JSON Schema, which may be of any type.

    Raises:
        ValueError: the schema is invalid, or has references to other documents.
    """

    whole = "result"
    _small = 0  # results can be large

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
