"""Conversion of any value to redacted, bounded and valid JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Sized
from itertools import islice
from typing import Any, get_args

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from pellucid.messages import Role
from pellucid.telemetry.capture import Redactor, mask_secret_keys, mask_secret_shapes
from pellucid.telemetry.secrets.commands import Arguments
from pellucid.telemetry.secrets.masking import MASK, mask_key, mask_text
from pellucid.telemetry.secrets.names import hides, names_secret
from pellucid.telemetry.secrets.search import SHORTEST
from pellucid.types import JSONValue

MAX_DEPTH = 32
MAX_ITEMS = 1024
MAX_BITS = 4096
"""Maximum bits of a recorded integer: Python refuses to format very long ones."""

MARGIN = 1024
"""Characters beyond the cut of a long text that redactors see, so that no part of a secret remains."""

LONGEST_KEY = 256
"""Maximum characters of a key of an object."""

_NAMES = frozenset({"type", "role", "id", "name", "modality", "mime_type"})
"""Keys that identify a message or part; their values are not cut, so that readers can still parse it."""

_LONGEST_NAME = 64

_SHORTER = (
    (4096, MAX_DEPTH + 1), (1024, MAX_DEPTH + 1), (256, MAX_DEPTH + 1), (64, MAX_DEPTH + 1),
    (64, 5), (16, 5), (16, 4), (16, 3),
)  # fmt: skip
"""Lengths of texts and lists, and depths, to which large values are cut. The parts of a message are at depth 2."""

READ = 2
"""Maximum bytes of a value that are read, as a multiple of the bytes that are recorded; the rest is omitted."""

WORK = 0.375
"""Maximum work of the search for secrets, per byte that is recorded of a value. Texts that are no attack need less."""

OVERHEAD = 6
QUOTES = 2
LONG = 14
NESTED = 10
FRACTION = 6
DIGITS = 2
"""Bytes counted for each value and key in addition to its characters; in addition to that, for the quotes of a key or
text, for one that is long enough to be searched, for a list or object, and for a float; and, as a power of two, the
bits of an integer for each byte. They are in proportion to the time that the value takes.
"""

LEFT_OUT = "[left out]"

_NAME_KEYS = ("name", "key", "header", "field")
_VALUE_KEYS = frozenset({"value", "val"})
"""Keys of an object that holds a value beside its name."""

_LEAVES = (str, bool, int, float, type(None))
_CONSTANTS = frozenset({bool, type(None)})
_CONTAINERS = frozenset({dict, list})
_NESTING = (dict, list)
_SIZED = (str, dict, list)


class Cleaner:
    """Conversion of one value in one pass: leaves are redacted, long texts cut, and everything made JSON-able.

    Attributes:
        removed: Number of characters and items omitted.
        omitted: Number of items omitted of a value that is itself a list.
    """

    __slots__ = (
        "_masks_names",
        "_masks_shapes",
        "_max_text",
        "_others",
        "_redactors",
        "_remaining",
        "_work",
        "omitted",
        "removed",
    )

    def __init__(self, redactors: Sequence[Redactor], max_bytes: int) -> None:
        self._redactors = redactors
        names, shapes = redactors.count(mask_secret_keys), redactors.count(mask_secret_shapes)
        self._masks_names = names > 0
        self._masks_shapes = shapes > 0
        self._others = len(redactors) > names + shapes
        self._max_text = max_bytes // 2
        self._remaining = READ * max_bytes
        self._work = int(WORK * max_bytes)
        self.removed = 0
        self.omitted = 0

    def clean(self, value: Any) -> JSONValue:
        """Return `value` as JSON-able data."""
        cleaned = self._clean(value, (), 0, is_secret=False)
        if isinstance(cleaned, list) and isinstance(value, Sized):
            self.omitted = len(value) - len(cleaned)
        return cleaned

    def redact(self, text: str) -> JSONValue:
        """Return a text redacted but not cut."""
        return self._redact(text, (), is_secret=False)

    def _clean(self, value: Any, path: tuple[str, ...], depth: int, *, is_secret: bool) -> JSONValue:
        """Clean the value at `path`; `is_secret` if a name in the path names a secret."""
        if self._remaining <= 0:
            self.removed += 1
            return LEFT_OUT
        self._remaining -= OVERHEAD
        kind = type(value)
        if kind is str and len(value) <= self._max_text:  # the most frequent case, hence first
            self._remaining -= len(value) + (LONG if len(value) >= SHORTEST else QUOTES)
        elif kind is int and value.bit_length() <= MAX_BITS:
            self._remaining -= value.bit_length() >> DIGITS
        elif kind is float:
            self._remaining -= FRACTION
        elif kind not in _CONSTANTS:
            if kind in _CONTAINERS or not isinstance(value, _LEAVES):
                return self._container(value, path, depth, is_secret=is_secret)
            return self._leaf(value, path, is_secret=is_secret)
        if is_secret or self._others:
            return self._redact(value, path, is_secret=is_secret)
        return self._masked(value) if kind is str and self._masks_shapes else value

    def _container(self, value: Any, path: tuple[str, ...], depth: int, *, is_secret: bool) -> JSONValue:
        self._remaining -= NESTED
        kind = type(value)
        if kind in _CONTAINERS and not value:
            return kind()
        if depth == MAX_DEPTH:
            return "[nested too deeply]"
        if kind is dict or isinstance(value, Mapping):  # the check of an abstract type is slow
            return self._object(value, path, depth + 1, is_secret=is_secret)
        if isinstance(value, (set, frozenset)):
            if len(value) > MAX_ITEMS:  # sorting takes too long
                self.removed += len(value)
                return f"[a set of {len(value)} items]"
            value = sorted(value, key=repr)  # in a stable order
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
        cleaned: dict[str, JSONValue] = {}
        secret_name = _secret_name(value)
        for key, item in islice(value.items(), MAX_ITEMS):
            is_over = self._remaining <= 0
            if is_over and not _names(key, item):
                if key == "content" and "type" in cleaned:  # or the part of a message would have none
                    cleaned[key] = LEFT_OUT
                continue
            name = self._key(key)
            if name in cleaned:  # keys that were masked or cut, or 1 beside "1"
                name = f"{name} ({len(cleaned)})"
            self._remaining -= len(name) + OVERHEAD + (LONG if len(name) >= SHORTEST else QUOTES)
            is_named = bool(secret_name) and name in _VALUE_KEYS
            is_hidden = is_secret or (self._masks_names and (is_named or hides(name, item)))
            item_path = path
            if self._others:
                item_path = (*path, secret_name, name) if is_named else (*path, name)
            if is_over:
                cleaned[name] = self._leaf(item, item_path, is_secret=is_hidden)
            else:
                cleaned[name] = self._clean(item, item_path, depth, is_secret=is_hidden)
        self.removed += len(value) - len(cleaned)
        return cleaned

    def _list(self, value: Sequence[Any], path: tuple[str, ...], depth: int, *, is_secret: bool) -> JSONValue:
        cleaned: list[JSONValue] = []
        previous: object = None
        arguments = Arguments()
        is_hidden = is_secret or self._masks_names
        for item in islice(value, MAX_ITEMS):
            if self._remaining <= 0:
                break
            if _is_pair(item):
                name, content = item
                first = self._clean(name, path, depth + 1, is_secret=is_secret)
                cleaned.append([first, self._clean(content, (*path, name), depth + 1, is_secret=is_hidden)])
            elif type(previous) is str and previous.startswith("-") and names_secret(previous):
                cleaned.append(self._clean(item, (*path, previous), depth, is_secret=is_hidden))
            elif type(item) is str and arguments.hides(item):
                cleaned.append(self._clean(item, path, depth, is_secret=is_hidden))
            else:
                cleaned.append(self._clean(item, path, depth, is_secret=is_secret))
            previous = item
        self.removed += len(value) - len(cleaned)
        return cleaned

    def _leaf(self, value: JSONValue, path: tuple[str, ...], *, is_secret: bool) -> JSONValue:
        excess = 0
        if isinstance(value, str):
            excess = len(value) - self._max_text
            if excess > 0:
                value = value[: self._max_text + MARGIN]
            self._remaining -= len(value)
        elif isinstance(value, int) and value.bit_length() > MAX_BITS:
            value = f"[a number of {value.bit_length()} bits]"
        value = self._redact(value, path, is_secret=is_secret)
        return self._cut(value, excess) if excess > 0 and isinstance(value, str) else value

    def _key(self, key: object) -> str:
        text = str(key)
        if len(text) <= LONGEST_KEY:
            return self._masked_key(text)
        excess = len(text) - LONGEST_KEY
        text = self._masked_key(text[: LONGEST_KEY + MARGIN])
        self.removed += excess
        return f"{text[:LONGEST_KEY]}… [{excess} more characters]"

    def _masked_key(self, text: str) -> str:
        if not self._masks_shapes:
            return text
        masked, work = mask_key(text)
        if work:
            self._allows(work)
        return masked

    def _masked(self, text: str) -> str:
        masked, work = mask_text(text, self._work)
        if not work or self._allows(work):
            return masked
        self.removed += len(text)
        return LEFT_OUT

    def _allows(self, work: int) -> bool:
        """Count the work of a search; after too much work, the rest of the value is not read."""
        self._work -= work
        if self._work >= 0:
            return True
        self._work = self._remaining = 0
        return False

    def _cut(self, text: str, excess: int) -> str:
        self.removed += excess
        return f"{text[: self._max_text]}… [{excess} more characters]"


def _secret_name(value: Mapping[Any, Any]) -> str:
    """Return the name in an object that holds a name and a value, as in a list of headers, if it names a secret."""
    if _VALUE_KEYS.isdisjoint(value):
        return ""
    names = (value.get(key) for key in _NAME_KEYS)
    return next((name for name in names if isinstance(name, str) and names_secret(name)), "")


def _is_pair(item: Any) -> bool:
    """Return whether an item is a pair of the name of a secret and the secret."""
    return isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str) and names_secret(item[0])  # noqa: PLR2004


def dumps(value: JSONValue) -> str:
    """Return JSON without spaces; values without a JSON form become a text or an escape."""
    try:
        return to_json(value, inf_nan_mode="strings").decode()
    except (PydanticSerializationError, ValueError):
        # A lone surrogate has no UTF-8 form, but a JSON escape. NaN is not valid JSON, and becomes a text.
        try:
            return json.dumps(value, allow_nan=False, separators=(",", ":"))
        except ValueError:
            return json.dumps(json.loads(json.dumps(value), parse_constant=str), separators=(",", ":"))


def size_of(text: str) -> int:
    """Return the size of a text in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


def bounded(text: str, limit: int) -> tuple[str, int]:
    """Shorten JSON to `limit` bytes, keeping it valid; return it with the number of top-level items omitted."""
    if size_of(text) <= limit:
        return text, 0
    value = json.loads(text)
    if isinstance(value, list):
        return _first_items(value, limit)
    return dumps(_shrunk(value, limit)), 0


def _jsonable(value: Any) -> JSONValue:
    """Convert an object to JSON-able data; the name of its type stands for one that cannot be converted."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    try:
        return to_jsonable_python(value, bytes_mode="base64", inf_nan_mode="strings")
    except (PydanticSerializationError, ValueError, RecursionError):
        return f"[{type(value).__module__}.{type(value).__qualname__}]"


def _first_items(items: list[JSONValue], limit: int) -> tuple[str, int]:
    fitting, remaining = [], limit - 2
    for item in items:
        encoded = dumps(item)
        remaining -= size_of(encoded) + 1
        if remaining < 0:
            break
        fitting.append(encoded)
    if not fitting:  # a shortened item is more useful than none
        encoded = dumps(_shrunk(items[0], limit - 2))
        if size_of(encoded) + 2 <= limit:
            return f"[{encoded}]", len(items) - 1
    return f"[{','.join(fitting)}]", len(items) - len(fitting)


def _shrunk(value: JSONValue, limit: int) -> JSONValue:
    """Cut texts, lists and depth of `value` in steps until it fits into `limit` bytes; a message stays a message."""
    longest, deepest = _extent(value)
    for length, depth in _SHORTER:
        if length < longest or depth < deepest:  # else the step would change nothing
            shorter = _cut_inside(value, length, depth)
            if size_of(dumps(shorter)) <= limit:
                return shorter
    is_message = isinstance(value, dict) and "parts" in value and value.get("role") in get_args(Role)
    shape = {name: value[name] for name in ("role", "finish_reason") if name in value} if is_message else {}
    if is_message:
        shape["parts"] = []
    return {**shape, "omitted": f"{size_of(dumps(value))} bytes"}


def _extent(value: JSONValue) -> tuple[int, int]:
    """Return the length of the longest text, list or object inside of `value`, and the number of its levels."""
    longest, levels, level = 0, 0, [value]
    while level := [item for item in level if isinstance(item, _SIZED)]:
        longest = max(longest, *map(len, level))
        levels += 1
        nesting = (item for item in level if isinstance(item, _NESTING))
        level = [child for item in nesting for child in (item.values() if isinstance(item, dict) else item)]
    return longest, levels


def _cut_inside(value: JSONValue, length: int, depth: int) -> JSONValue:
    if isinstance(value, str):
        excess = len(value) - length
        return value if excess <= 0 else f"{value[:length]}… [{excess} more characters]"
    if not isinstance(value, _NESTING):
        return value
    if not depth:
        names = {key: item for key, item in value.items() if _names(key, item)} if isinstance(value, dict) else {}
        return names if "type" in names else f"[{size_of(dumps(value))} bytes]"
    if isinstance(value, list):
        return [_cut_inside(item, length, depth - 1) if isinstance(item, _SIZED) else item for item in value[:length]]
    return {
        key: item if not isinstance(item, _SIZED) or _names(key, item) else _cut_inside(item, length, depth - 1)
        for key, item in islice(value.items(), length)
    }


def _names(key: object, item: object) -> bool:
    """Return whether an entry identifies a message or part."""
    return key in _NAMES and isinstance(item, str) and len(item) <= _LONGEST_NAME
