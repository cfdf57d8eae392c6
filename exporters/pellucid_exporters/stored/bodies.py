"""Large texts that values refer to by digest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pellucid_exporters.stored.rows import BODY


def digests_in(value: Any) -> Iterator[str]:
    """Yield the digests of the large texts in a value."""
    if isinstance(value, Mapping):
        if _is_reference(value):
            yield value[BODY]
        else:
            for item in value.values():
                yield from digests_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from digests_in(item)


def filled(value: Any, texts: Mapping[str, str]) -> Any:
    """Return a value with its large texts in place; what is not in `texts` stays a reference."""
    if isinstance(value, Mapping):
        if _is_reference(value):
            return texts.get(value[BODY], value)
        return {key: filled(item, texts) for key, item in value.items()}
    return [filled(item, texts) for item in value] if isinstance(value, list | tuple) else value


def _is_reference(value: Mapping[str, Any]) -> bool:
    """Return whether an object stands for a large text; content may have the same key with another value."""
    return value.keys() == {BODY} and isinstance(value[BODY], str)
