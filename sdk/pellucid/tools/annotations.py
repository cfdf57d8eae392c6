"""Annotations of a tool: hints, as trustworthy as the server that lists the tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Final, Self

from pellucid.errors import ConfigError
from pellucid.types import JSONObject

LONGEST_ADDRESS: Final = 500
"""Most characters of the address of an icon in digests, recordings and lock files; an icon may be in its address."""

_HINTS: Final = {
    "read_only_hint": "readOnlyHint",
    "destructive_hint": "destructiveHint",
    "idempotent_hint": "idempotentHint",
    "open_world_hint": "openWorldHint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolIcon:
    """Icon of a tool.

    Attributes:
        src: Its address; `data:` addresses have the icon itself. An icon may be an SVG with scripts.
        mime_type: Media type.
        sizes: Sizes such as `48x48` or `any`.
        theme: `light` or `dark`, if it is made for one.
    """

    src: str
    mime_type: str | None = None
    sizes: tuple[str, ...] = ()
    theme: str | None = None

    def to_dict(self) -> JSONObject:
        """Return the icon as MCP has it."""
        values = {"src": self.src, "mimeType": self.mime_type, "sizes": list(self.sizes), "theme": self.theme}
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Return the icon that `to_dict` turned into this value."""
        return cls(
            src=value["src"],
            mime_type=value.get("mimeType"),
            sizes=tuple(value.get("sizes", ())),
            theme=value.get("theme"),
        )


@dataclass(frozen=True, kw_only=True)
class ToolAnnotations:
    """Annotations of a tool, as MCP has them. These are hints: nobody has checked that they are true.

    Attributes:
        title: Name of the tool for people.
        read_only_hint: Whether the tool changes nothing.
        destructive_hint: Whether it may delete or overwrite something, if it is not read-only.
        idempotent_hint: Whether a repeated call with the same arguments changes nothing more, if it is not read-only.
        open_world_hint: Whether it reaches things outside of a closed domain, as a web search does.
        icons: Icons.
    """

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None
    icons: tuple[ToolIcon, ...] = ()

    @property
    def is_destructive(self) -> bool:
        """True unless the tool says that it is read-only, or that it destroys nothing.

        These are the defaults of MCP.
        """
        return self.read_only_hint is not True and self.destructive_hint is not False

    def to_dict(self) -> JSONObject:
        """Return the annotations with the names that MCP has for them, without those that the tool does not state."""
        hints = {key: getattr(self, name) for name, key in _HINTS.items()}
        stated = {"title": self.title, **hints, "icons": [icon.to_dict() for icon in self.icons] or None}
        return {name: value for name, value in stated.items() if value is not None}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Return the annotations that `to_dict` turned into this value."""
        return cls(
            title=value.get("title"),
            icons=tuple(map(ToolIcon.from_dict, value.get("icons", ()))),
            **{name: value.get(key) for name, key in _HINTS.items()},
        )

    @cached_property
    def brief(self) -> JSONObject:
        """The annotations as JSON, with a hash in place of long addresses of icons."""
        brief = self.to_dict()
        for icon in brief.get("icons", ()):
            icon["src"] = _brief(icon["src"])
        return brief

    def added_to(self, digest: bytes) -> bytes:
        """Return a hash of a tool's digest and its annotations."""
        return fingerprint_of(digest, self.brief)


def fingerprint_of(digest: bytes, annotations: JSONObject) -> bytes:
    """Return the `Tool.fingerprint` of a tool's digest and its annotations as JSON."""
    return blake2b(digest + json.dumps(annotations).encode(), digest_size=16).digest()


def asks(name: str, needs_approval: str, annotations: ToolAnnotations | None) -> bool:
    """Return whether calls of a tool need an approval, given a `needs_approval` that is a text: `destructive`.

    Raises:
        ConfigError: it is another text.
    """
    if needs_approval != "destructive":
        raise ConfigError(
            f"Tool({name!r}): unknown needs_approval {needs_approval!r}; use True, False, 'destructive' or a function"
        )
    return annotations is None or annotations.is_destructive


def _brief(address: str) -> str:
    if len(address) <= LONGEST_ADDRESS:
        return address
    digest = blake2b(address.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{address[:40]}... ({len(address)} characters, blake2b {digest})"
