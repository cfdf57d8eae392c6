"""Making any value JSON that is redacted, bounded and valid."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, get_args

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from pellucid.messages import Role
from pellucid.telemetry.capture import MASK, Redactor, mask_key, mask_secret_keys, mask_secret_shapes, mask_text
from pellucid.telemetry.secrets.names import names_secret
from pellucid.types import JSONValue

MAX_DEPTH = 32
MAX_ITEMS = 1024
MAX_BITS = 4096
"""Integers of more bits are not recorded: Python refuses to write very long ones."""

MARGIN = 1024
"""Characters beyond the cut of a long text that redactors see, so that no half of a secret stays."""

LONGEST_KEY = 256
"""Characters of a key of an object."""

_NAMES = frozenset({"type", "role", "id", "name", "modality", "mime_type"})
"""Keys that say what a message or part is; their values are not cut, or readers would not know it."""

_LONGEST_NAME = 64

_SHORTER = (
    (4096, MAX_DEPTH + 1), (1024, MAX_DEPTH + 1), (256, MAX_DEPTH + 1), (64, MAX_DEPTH + 1),
    (64, 5), (16, 5), (16, 4), (16, 3),
)  # fmt: skip
"""Lengths of texts and lists, and depths, to which what is too big is cut. The parts of a message are at depth 2."""

READ = 2
"""How many times the bytes that are recorded of a value are read of it at most; what comes after that is left out."""

WORK = 0.375
"""How much work the search for secrets may be for each byte that is recorded of a value. Honest texts need less."""

OVERHEAD = 4
QUOTES = 2
"""What each value and key counts for beside its characters, and a text and a key for its quotes: at most `READ` times
what these take in JSON.
"""

LEFT_OUT = "[left out]"

_NAME_KEYS = ("name", "key", "header", "field")
_VALUE_KEYS = frozenset({"value", "val"})
"""Keys of an object that has the name of a value beside the value."""

_LEAVES = (str, bool, int, float, type(None))
_UNCHANGED = frozenset({bool, float, type(None)})
"""Leaves that are recorded as they are, unless their name makes them secrets or a redactor of the user changes them."""
_CONTAINERS = frozenset({dict, list})


class Cleaner:
    """Walks a value once: redacts leaves, cuts long texts, and makes everything JSON-able.

    Attributes:
        removed: Characters and items that were left out.
    """

    __slots__ = ("_left", "_masks_names", "_masks_shapes", "_max_text", "_others", "_redactors", "_work", "removed")

    def __init__(self, redactors: Sequence[Redactor], max_bytes: int) -> None:
        self._redactors = redactors
        self._masks_names = mask_secret_keys in redactors
        self._masks_shapes = mask_secret_shapes in redactors
        self._others = any(redact not in (mask_secret_keys, mask_secret_shapes) for redact in redactors)
        self._max_text = max_bytes // 2
        self._left = READ * max_bytes
        self._work = int(WORK * max_bytes)
        self.removed = 0

    def clean(self, value: Any) -> JSONValue:
        """Return `value` as JSON-able data."""
        return self._clean(value, (), 0, is_secret=False)

    def redact(self, text: str) -> JSONValue:
        """Return a text redacted, and not cut."""
        return self._redact(text, (), is_secret=False)

    def _clean(self, value: Any, path: tuple[str, ...], depth: int, *, is_secret: bool) -> JSONValue:
        """Clean a value that `path` leads to, in which one name is that of a secret if `is_secret`."""
        if self._left <= 0:
            self.removed += 1
            return LEFT_OUT
        self._left -= OVERHEAD
        kind = type(value)
        if kind is str and len(value) <= self._max_text:  # most of what there is, hence first
            self._left -= len(value) + QUOTES
            return self._redact(value, path, is_secret=is_secret)
        if kind in _UNCHANGED or (kind is int and value.bit_length() <= MAX_BITS):
            return self._redact(value, path, is_secret=is_secret) if is_secret or self._others else value
        if isinstance(value, _LEAVES):
            return self._leaf(value, path, is_secret=is_secret)
        if kind in _CONTAINERS and not value:
            return kind()
        return self._container(value, path, depth, is_secret=is_secret)

    def _container(self, value: Any, path: tuple[str, ...], depth: int, *, is_secret: bool) -> JSONValue:
        if depth == MAX_DEPTH:
            return "[nested too deeply]"
        if isinstance(value, Mapping):
            return self._object(value, path, depth + 1, is_secret=is_secret)
        if isinstance(value, (set, frozenset)):
            value = sorted(value, key=repr)  # in an order that is the same every time
        if isinstance(value, (list, tuple)):
            return self._list(value, path, depth + 1, is_secret=is_secret)
        return self._clean(_jsonable(value), path, depth + 1, is_secret=is_secret)

    def _redact(self, value: JSONValue, path: tuple[str, ...], *, is_secret: bool) -> JSONValue:
        if not self._others:
            if is_secret:
                return MASK
            return self._masked(value) if self._masks_shapes and isinstance(value, str) else value
        for redact in self._redactors:
            if redact is mask_secret_keys:
                value = MASK if is_secret else value
            elif redact is mask_secret_shapes:
                value = self._masked(value) if isinstance(value, str) else value
            else:
                value = redact(path, value)
        return value

    def _object(self, value: Mapping[Any, Any], path: tuple[str, ...], depth: int, *, is_secret: bool) -> JSONValue:
        found: dict[str, JSONValue] = {}
        called = _called(value)
        for key, item in islice(value.items(), MAX_ITEMS):
            if self._left <= 0:
                break
            name = self._key(key)
            if name in found:  # of keys that were masked or cut, or 1 beside "1"
                name = f"{name} ({len(found)})"
            self._left -= len(name) + OVERHEAD + QUOTES
            names = (called, name) if called and name in _VALUE_KEYS else (name,)
            hides = is_secret or (self._masks_names and (len(names) > 1 or names_secret(name)))
            item_path = (*path, *names) if self._others else path
            found[name] = self._clean(item, item_path, depth, is_secret=hides)
        self.removed += len(value) - len(found)
        return found

    def _list(self, value: Sequence[Any], path: tuple[str, ...], depth: int, *, is_secret: bool) -> JSONValue:
        found: list[JSONValue] = []
        before: object = None
        hides = is_secret or self._masks_names
        for item in islice(value, MAX_ITEMS):
            if self._left <= 0:
                break
            if _is_pair(item):
                name, content = item
                first = self._clean(name, path, depth + 1, is_secret=is_secret)
                found.append([first, self._clean(content, (*path, name), depth + 1, is_secret=hides)])
            elif type(before) is str and before.startswith("-") and names_secret(before):
                found.append(self._clean(item, (*path, before), depth, is_secret=hides))
            else:
                found.append(self._clean(item, path, depth, is_secret=is_secret))
            before = item
        self.removed += len(value) - len(found)
        return found

    def _leaf(self, value: JSONValue, path: tuple[str, ...], *, is_secret: bool) -> JSONValue:
        over = 0
        if isinstance(value, str):
            over = len(value) - self._max_text
            if over > 0:
                value = value[: self._max_text + MARGIN]
            self._left -= len(value)
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            value = f"[a number of {value.bit_length()} bits]"
        value = self._redact(value, path, is_secret=is_secret)
        return self._cut(value, over) if over > 0 and isinstance(value, str) else value

    def _key(self, key: object) -> str:
        text = str(key)
        if len(text) <= LONGEST_KEY:
            return self._masked_key(text)
        over = len(text) - LONGEST_KEY
        text = self._masked_key(text[: LONGEST_KEY + MARGIN])
        self.removed += over
        return f"{text[:LONGEST_KEY]}… [{over} more characters]"

    def _masked_key(self, text: str) -> str:
        if not self._masks_shapes:
            return text
        masked, work = mask_key(text)
        self._allows(work)
        return masked

    def _masked(self, text: str) -> str:
        masked, work = mask_text(text, self._work)
        if self._allows(work):
            return masked
        self.removed += len(text)
        return LEFT_OUT

    def _allows(self, work: int) -> bool:
        """Count the work of a search. After too much of it nothing more of the value is read."""
        self._work -= work
        if self._work >= 0:
            return True
        self._work = self._left = 0
        return False

    def _cut(self, text: str, over: int) -> str:
        self.removed += over
        return f"{text[: self._max_text]}… [{over} more characters]"


def _called(value: Mapping[Any, Any]) -> str:
    """Return the name that an object gives to the value in it, as in a list of headers, if it is that of a secret."""
    if _VALUE_KEYS.isdisjoint(value):
        return ""
    names = (value.get(key) for key in _NAME_KEYS)
    return next((name for name in names if isinstance(name, str) and names_secret(name)), "")


def _is_pair(item: Any) -> bool:
    """Return whether this is the name of a secret and the secret."""
    return isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str) and names_secret(item[0])  # noqa: PLR2004


def dumps(value: JSONValue) -> str:
    """Return JSON without spaces; what JSON has no form for becomes a text or an escape."""
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, ValueError):
        # A lone surrogate has no UTF-8 form; written as a JSON escape it survives. NaN is no JSON, and becomes a text.
        value = json.loads(json.dumps(value), parse_constant=str)
        return json.dumps(value, separators=(",", ":"))


def size_of(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def bounded(text: str, limit: int) -> tuple[str, int]:
    """Shorten JSON until it fits, staying valid; return it with the number of top-level items left out."""
    if size_of(text) <= limit:
        return text, 0
    value = json.loads(text)
    if isinstance(value, list):
        return _first_items(value, limit)
    return dumps(_shrunk(value, limit)), 0


def _jsonable(value: Any) -> JSONValue:
    """Turn an object into JSON-able data; one that cannot be turned is named by its type."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings")
    except (PydanticSerializationError, ValueError, RecursionError):
        return f"[{type(value).__module__}.{type(value).__qualname__}]"


def _first_items(items: list[JSONValue], limit: int) -> tuple[str, int]:
    kept, left = [], limit - 2
    for item in items:
        encoded = dumps(item)
        left -= size_of(encoded) + 1
        if left < 0:
            break
        kept.append(encoded)
    if not kept and len(items) == 1:  # what is left of it says more than nothing
        encoded = dumps(_shrunk(items[0], limit - 2))
        if size_of(encoded) + 2 <= limit:
            return f"[{encoded}]", 0
    return f"[{','.join(kept)}]", len(items) - len(kept)


def _shrunk(value: JSONValue, limit: int) -> JSONValue:
    """Cut texts, lists and depth of `value`, harder each time, until it fits; a message stays a message."""
    for text_limit, depth in _SHORTER:
        shorter = _cut_inside(value, text_limit, depth)
        if size_of(dumps(shorter)) <= limit:
            return shorter
    is_message = isinstance(value, dict) and "parts" in value and value.get("role") in get_args(Role)
    shape = {name: value[name] for name in ("role", "finish_reason") if name in value} if is_message else {}
    if is_message:
        shape["parts"] = []
    return {**shape, "omitted": f"{size_of(dumps(value))} bytes"}


def _cut_inside(value: JSONValue, text_limit: int, depth: int) -> JSONValue:
    if isinstance(value, str):
        over = len(value) - text_limit
        return value if over <= 0 else f"{value[:text_limit]}… [{over} more characters]"
    if isinstance(value, dict | list) and not depth:
        kind = value.get("type") if isinstance(value, dict) else None
        return {"type": kind} if _names("type", kind) else f"[{size_of(dumps(value))} bytes]"
    if isinstance(value, list):
        return [_cut_inside(item, text_limit, depth - 1) for item in value[:text_limit]]
    if isinstance(value, dict):
        return {
            key: item if _names(key, item) else _cut_inside(item, text_limit, depth - 1)
            for key, item in list(value.items())[:text_limit]
        }
    return value


def _names(key: str, item: JSONValue) -> bool:
    """Say whether this tells what a message or part is, or which."""
    return key in _NAMES and isinstance(item, str) and len(item) <= _LONGEST_NAME
