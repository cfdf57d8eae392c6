"""Valid JSON of values of any type."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_json

_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def plain_json(value: Any) -> bytes:
    """Encode a value as JSON in UTF-8.

    Lone surrogates become U+FFFD, NaN and infinity text, bytes base64.
    """
    try:
        return to_json(value, inf_nan_mode="strings", bytes_mode="base64")
    except (PydanticSerializationError, ValueError):
        # A lone surrogate has no UTF-8 form, and its JSON escape is refused by strict readers.
        text = json.dumps(value, default=_plain)
        text = json.dumps(json.loads(text, parse_constant=str), ensure_ascii=False, separators=(",", ":"))
        return _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text).encode()


def _plain(value: object) -> Any:
    """Convert a value that JSON cannot represent."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return base64.urlsafe_b64encode(value).decode() if isinstance(value, bytes) else str(value)
