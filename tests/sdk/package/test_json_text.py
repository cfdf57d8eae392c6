"""JSON text: that of the standard library, with its errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pellucid.json_text import JSONText

OPTIONS: tuple[dict[str, Any], ...] = (
    {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")},
    {"sort_keys": True, "allow_nan": False},
    {},
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters())
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


def contained() -> Any:
    """Return a list that contains itself."""
    values: list[Any] = [1]
    values.append({"self": values})
    return values


def nested() -> Any:
    """Return a list that is nested too deeply."""
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


def outcome(encode: Any, value: Any) -> tuple[Any, ...]:
    """Return the text, or the kind of the error."""
    try:
        return (encode(value),)
    except (TypeError, ValueError, RecursionError) as error:
        return type(error), str(error)[:20]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@given(value=VALUES)
def test_a_text_is_that_of_the_standard_library(options: dict[str, Any], value: Any) -> None:
    """So is the error of a number that JSON does not have."""
    assert outcome(JSONText(**options).encode, value) == outcome(json.JSONEncoder(**options).encode, value)


@pytest.mark.parametrize("value", [contained(), nested(), {"a": {1}}, {(1,): 2}], ids=["itself", "deep", "set", "key"])
def test_a_value_that_is_not_json(value: Any) -> None:
    """The error is that of the standard library, also again: nothing is kept of a value that failed."""
    encoder = JSONText()
    expected = outcome(json.JSONEncoder().encode, value)
    assert [outcome(encoder.encode, value) for _ in range(2)] == [expected] * 2
    assert encoder.encode([1]) == "[1]"
