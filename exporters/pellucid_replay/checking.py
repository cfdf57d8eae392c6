"""Types of what a tape holds: a file may have been edited, and anybody can set attributes of spans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pellucid import semconv

T = TypeVar("T")

_COUNTS: Final = frozenset(
    {
        semconv.INPUT_BYTES,
        semconv.OUTPUT_BYTES,
        semconv.ITERATION,
        semconv.ATTEMPT,
        semconv.USAGE_INPUT_TOKENS,
        semconv.USAGE_OUTPUT_TOKENS,
        semconv.USAGE_CACHE_READ_INPUT_TOKENS,
        semconv.USAGE_CACHE_WRITE_INPUT_TOKENS,
        semconv.USAGE_REASONING_OUTPUT_TOKENS,
    }
)
_TEXTS: Final = frozenset(
    {
        semconv.PHASE,
        semconv.RUN_ID,
        semconv.RESUMED_FROM,
        semconv.DURABLE_RUN_ID,
        semconv.CONVERSATION_ID,
        semconv.AGENT_NAME,
        semconv.AGENT_DESCRIPTION,
        semconv.AGENT_CONFIGURATION,
        semconv.PROVIDER_ID,
        semconv.PROVIDER_KIND,
        semconv.DISCOVERY_CACHE,
        semconv.PROVIDER_NAME,
        semconv.REQUEST_MODEL,
        semconv.RESPONSE_MODEL,
        semconv.RESPONSE_ID,
        semconv.RESPONSE_CHUNKS,
        semconv.TOOL_NAME,
        semconv.TOOL_CALL_ID,
        semconv.ASYNC_RESULT_ID,
        semconv.ASYNC_STATUS,
        semconv.APPROVAL_ID,
        semconv.APPROVAL_OUTCOME,
        semconv.APPROVAL_DECIDED_BY,
        semconv.OUTCOME,
        semconv.ERROR_TYPE,
        semconv.ERROR_KIND,
        semconv.INPUT,
        semconv.OUTPUT,
        semconv.INPUT_MESSAGES,
        semconv.OUTPUT_MESSAGES,
        semconv.SYSTEM_INSTRUCTIONS,
        semconv.TOOL_DEFINITIONS,
        semconv.TOOL_CALL_ARGUMENTS,
        semconv.TOOL_CALL_RESULT,
        semconv.INPUT_DIGEST,
        semconv.OUTPUT_DIGEST,
        semconv.CATALOG_DIGEST,
        semconv.REQUEST_DIGEST,
    }
)
_TYPES: Final[Mapping[str, type]] = {
    **dict.fromkeys(_COUNTS, int),
    **dict.fromkeys(_TEXTS, str),
    semconv.RESPONSE_FINISH_REASONS: list,
}


def well_typed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes without those of another type than Pellucid's, which count as not recorded."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in attributes.items()
        if type(value) is _TYPES.get(name, type(value)) or (isinstance(value, tuple) and _TYPES.get(name) is list)
    }


def expect(value: Any, kind: type[T]) -> T:
    """Return a value of a type.

    Raises:
        TypeError: it is of another one.
    """
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def checked_catalog(catalog: dict[str, Any]) -> dict[str, Any]:
    """Return a catalogue of a file.

    Raises:
        KeyError, TypeError: it, or a tool of it, is none.
    """
    for tool in expect(catalog["tools"], list):
        for name, kind in (("name", str), ("description", str), ("parameters", dict)):
            expect(tool[name], kind)
    return catalog
