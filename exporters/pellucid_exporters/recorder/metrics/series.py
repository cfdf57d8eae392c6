"""Sets of attributes, as the SDK's storage knows them, found by the attributes of a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from opentelemetry.context import Context

from pellucid_exporters.sdk_internals import Measurement, _hash_attributes

if TYPE_CHECKING:
    from opentelemetry.util.types import Attributes

    from pellucid_exporters.sdk_internals import _HashedAttributes, _Instrument

_SCALARS: Final = frozenset({str, bool, int, float, bytes, type(None)})


class Series:
    """A set of attributes, cleaned and hashed by the SDK.

    Attributes:
        attributes: Cleaned attributes; `None` if there were none.
        key: Key of their aggregation in the SDK's storage.
    """

    __slots__ = ("attributes", "key")

    def __init__(self, attributes: Attributes, instrument: _Instrument) -> None:
        self.attributes = Measurement(0, 0, instrument, Context(), attributes).attributes
        self.key: _HashedAttributes = _hash_attributes(self.attributes or {})


def has_only_scalars(attributes: object) -> bool:
    """Return whether attributes are a mapping of non-empty strings to scalars, which the SDK leaves as they are."""
    return (
        isinstance(attributes, Mapping)
        and all(type(key) is str and key for key in attributes)
        and _SCALARS.issuperset(map(type, attributes.values()))
    )
