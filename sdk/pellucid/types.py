"""Type aliases for JSON."""

from __future__ import annotations

from typing import Any, TypeAlias

JSONValue: TypeAlias = Any
"""`None`, a boolean, a number, a string, or a list or object of these (RFC 8259)."""

JSONObject: TypeAlias = dict[str, Any]
"""A JSON object, such as a JSON Schema."""
