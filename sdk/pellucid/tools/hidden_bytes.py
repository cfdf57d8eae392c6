"""A quick test for characters of tool definitions that people do not see."""

from __future__ import annotations

import re
from typing import Final

_SUSPICIOUS: Final = re.compile(
    rb"\\(?:u00|[bf])|\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8b-\x8f\xaa-\xae]|\xe2\x81[\xa0-\xa9]|\xef\xbb\xbf|"
    rb"\xf3\xa0[\x80-\x81]"
)
"""Bytes of a definition in JSON that may be hidden characters; a quick test that most tools do not match."""


def may_hide(encoded: bytes) -> bool:
    """Return whether a definition in JSON may have hidden characters."""
    return _SUSPICIOUS.search(encoded) is not None
