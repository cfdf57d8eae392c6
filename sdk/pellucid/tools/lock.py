"""Lock files: the definitions of hubs' tools that somebody has reviewed.

A lock file is a text with one line of JSON for each tool, sorted, after a line with the version. A line has the texts
of the tool, which people review, and their digest, by which runs compare. The digest is checked against the texts when
the file is read, so that the texts which were reviewed are those that count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeAlias

from pydantic_core import to_json

from pellucid.errors import ConfigError
from pellucid.tools.annotations import fingerprint_of
from pellucid.tools.word_diff import word_diff
from pellucid.types import JSONObject

if TYPE_CHECKING:
    from os import PathLike

    from pellucid.tools.tool import Tool

VERSION: Final = 1
_REMEDY: Final = "make it with: pellucid tools lock MODULE:AGENT"
_OWN: Final = ("hub", "digest", "annotations")
"""Members of a line that are no part of the definition."""

_UNSEEN: Final = re.compile(
    "[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f\ud800-\udfff]"
)
"""Characters that reviewers would not see, which are escaped in the file."""

_KEPT: Final = ("name", "type")
"""Places that have no words to compare: a tool of another name is another tool."""

Key: TypeAlias = tuple[str, str]
"""Id of a hub's provider, and name of a tool as the provider lists it."""


class Definition(NamedTuple):
    """Entry of a tool in a lock file.

    Attributes:
        digest: Hexadecimal digits of `Tool.fingerprint`.
        definition: Definition of the tool that models get.
        annotations: Annotations of the tool; may be empty.
    """

    digest: str
    definition: JSONObject
    annotations: JSONObject

    @classmethod
    def of(cls, tool: Tool[Any]) -> Self:
        """Return the definition of a tool."""
        definition = json.loads(to_json(tool.definition.to_dict(), serialize_unknown=True))
        return cls(
            tool.fingerprint.hex(), definition, dict(tool.annotations.brief) if tool.annotations is not None else {}
        )

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Self:
        """Return the definition of a line.

        Raises:
            ValueError: the digest is not that of the texts.
        """
        definition = {"type": "function", **{name: value for name, value in line.items() if name not in _OWN}}
        annotations = line.get("annotations", {})
        digest = blake2b(to_json(definition), digest_size=16).digest()
        if annotations:
            digest = fingerprint_of(digest, annotations)
        if digest.hex() != line["digest"]:
            raise ValueError("the digest is not that of the texts")
        return cls(digest.hex(), definition, annotations)

    def line(self, hub: str) -> str:
        """Return the line of the tool in a lock file."""
        shown = {name: value for name, value in self.definition.items() if (name, value) != ("type", "function")}
        said = {"annotations": self.annotations} if self.annotations else {}
        text = json.dumps({"hub": hub, "digest": self.digest, **shown, **said}, ensure_ascii=False)
        return _UNSEEN.sub(lambda found: json.dumps(found[0])[1:-1], text)

    def parts(self) -> dict[str, str]:
        """Return the values of the definition as JSON, by their places, such as `parameters.properties.path.type`."""
        said = {"annotations": self.annotations} if self.annotations else {}
        return dict(_leaves("", {**self.definition, **said}))


@dataclass(frozen=True)
class Difference:
    """A tool that differs from the lock file.

    Attributes:
        hub: Id of its provider.
        name: Its name.
        locked: Tool in the lock file; None if it is not there.
        found: Tool that the hub lists; None if it does not list it.
    """

    hub: str
    name: str
    locked: Definition | None
    found: Definition | None

    @property
    def change(self) -> Literal["changed", "new", "removed"]:
        """Change of the tool."""
        return "new" if self.locked is None else "removed" if self.found is None else "changed"

    @property
    def mark(self) -> tuple[str, str | None]:
        """Name of the tool, and the digest of what the hub lists."""
        return self.name, self.found.digest if self.found is not None else None

    @cached_property
    def text(self) -> str:
        """Lines of the change: one for each value that differs, after its place."""
        old, new = (side.parts() if side is not None else {} for side in (self.locked, self.found))
        places = [place for place in dict.fromkeys([*old, *new]) if old.get(place) != new.get(place)]
        lines = [
            f"{place}: {word_diff(old.get(place, ''), new.get(place, ''))}" for place in places if place not in _KEPT
        ]
        return "\n".join(lines) or "the order of its members"


class ToolLock:
    """The tools of a lock file.

    Args:
        tools: Definitions by hub and name.
    """

    def __init__(self, tools: Mapping[Key, Definition]) -> None:
        self.tools = tools

    @classmethod
    def of(cls, catalogs: Mapping[str, Iterable[Tool[Any]]]) -> Self:
        """Return a lock of the tools that hubs list."""
        return cls({(hub, tool.name): Definition.of(tool) for hub, tools in catalogs.items() for tool in tools})

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Self:
        """Return the lock of a file.

        Raises:
            ConfigError: there is no such file, it cannot be read, is damaged, or has another version.
        """
        try:
            lines = Path(path).read_text(encoding="utf-8").split("\n")
        except FileNotFoundError:
            raise ConfigError(f"there is no lock file {str(path)!r}; {_REMEDY}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the lock file {str(path)!r} cannot be read: {error}") from error
        _check_header(path, lines[0])
        tools: dict[Key, Definition] = {}
        for number, line in enumerate(lines[1:], start=2):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
                key, definition = (str(value["hub"]), str(value["name"])), Definition.read(value)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                problem = f"line {number} of the lock file {str(path)!r} is damaged ({error})"
                raise ConfigError(f"{problem}; {_REMEDY}") from error
            if tools.setdefault(key, definition) is not definition:
                raise ConfigError(f"the lock file {str(path)!r} has tool {key[1]!r} of hub {key[0]!r} twice; {_REMEDY}")
        return cls(tools)

    def write(self, path: str | PathLike[str]) -> None:
        """Write the file.

        Raises:
            ConfigError: it cannot be written.
        """
        tools = (tool.line(hub) for (hub, _), tool in sorted(self.tools.items()))
        lines = [json.dumps({"pellucid_lock": VERSION}), *tools]
        try:
            Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        except OSError as error:
            raise ConfigError(f"the lock file {str(path)!r} cannot be written: {error}") from error

    def listed(self, hub: str, tools: Sequence[Tool[Any]]) -> Iterator[Difference]:
        """Yield the tools that a hub lists and that differ from the lock, or are not in it; not those of Pellucid."""
        for tool in tools:
            if getattr(tool, "is_ours", False):
                continue
            locked = self.tools.get((hub, tool.name))
            if locked is None or locked.digest != tool.fingerprint.hex():
                yield Difference(hub, tool.name, locked, Definition.of(tool))

    def compared(self, now: ToolLock, hubs: Iterable[str]) -> list[Difference]:
        """Return the tools of hubs that differ between this lock and what the hubs list now, sorted."""
        keys = sorted({key for key in (*self.tools, *now.tools) if key[0] in set(hubs)})
        found = [Difference(*key, self.tools.get(key), now.tools.get(key)) for key in keys]
        return [each for each in found if each.locked is None or each.found is None or each.locked[0] != each.found[0]]


def _leaves(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the values within a value that have no places in them, as JSON, each with its place."""
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        members = enumerate(value)
    if not members:
        yield place, json.dumps(value, ensure_ascii=False)
    for name, member in members:
        yield from _leaves(f"{place}.{name}" if place else str(name), member)


def _check_header(path: str | PathLike[str], line: str) -> None:
    try:
        version = json.loads(line)["pellucid_lock"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError(f"{str(path)!r} is not a lock file: its first line has no version; {_REMEDY}") from None
    if version != VERSION:
        raise ConfigError(
            f"the lock file {str(path)!r} has version {version!r}, but this release reads {VERSION}; {_REMEDY}"
        )
