"""Blanks that ASCII patterns do not know, such as those in texts that are copied from web pages."""

from __future__ import annotations

from typing import Final

BLANKS: Final = "\x85\xa0\u1680\u180e\u2000-\u200d\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
"""Characters and ranges, for a set in a pattern: NO-BREAK SPACE, THIN SPACE, ZERO WIDTH SPACE and others."""
