"""Names that an application may give its instruments and attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY_INSTRUMENT: Final[Mapping[str, st.SearchStrategy[Any]]] = {
    "attributes": st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.integers() | st.booleans(), max_size=4),
    "name": st.from_regex(r"[a-zA-Z][a-zA-Z0-9_./-]{0,20}", fullmatch=True),
    "unit": st.sampled_from(["", "1", "s", "{x}", "{x}/s", "weird unit", "/"]),
}
"""Arguments of a test that is given an instrument and the attributes of a measurement."""
