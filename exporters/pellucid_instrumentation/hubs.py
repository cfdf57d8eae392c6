"""Hubs: which MCP server a connection leads to, and what it is called in traces, metrics and alerts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, urlsplit

from pellucid.errors import ConfigError
from pellucid_instrumentation.commands import name_of

VARIABLE: Final = "PELLUCID_HUBS"

_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_TOKEN: Final = re.compile(r".*[=;].*|(?=.*[^A-Za-z._~@-]).{16,}")
"""Part of a path that may be a secret or the id of a user."""


@dataclass(frozen=True, slots=True)
class ObservedHub:
    """Name and objective of a hub.

    Attributes:
        id: Value of `pellucid.provider.id`; None for the one that the server has without it.
        objective: Seconds that a listing should take; exported for alerts.

    Raises:
        ConfigError: the id is empty, or the objective is not positive.
    """

    id: str | None = None
    objective: float | None = None

    def __post_init__(self) -> None:
        if self.id == "":
            raise ConfigError("ObservedHub(id=''): give the hub a name; spans, metrics and alerts carry it")
        if self.objective is not None and not self.objective > 0:
            raise ConfigError(f"ObservedHub(objective={self.objective!r}): must be a positive number of seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Server that a connection leads to, as known before the connection is open.

    Attributes:
        kind: Value of `pellucid.provider.kind`.
        name: Name that the application gave to the server in its framework, if any.
        url: URL of a server over HTTP; it may contain secrets.
        command: Command of a server over stdio with its arguments, which may contain secrets.
    """

    kind: str
    name: str | None = None
    url: str | None = field(default=None, repr=False)
    command: tuple[str, ...] = field(default=(), repr=False)

    @property
    def address(self) -> str | None:
        """Host, for HTTP."""
        return _split(self.url).hostname if self.url else None

    @property
    def port(self) -> int | None:
        """Port, for HTTP."""
        if not self.url:
            return None
        parts = _split(self.url)
        return parts.port or _PORTS.get(parts.scheme)

    @property
    def place(self) -> str:
        """Host and path, or the package of the command: what identifies the server, without its secrets."""
        if self.url:
            parts = _split(self.url)
            path = "/".join("*" if _TOKEN.fullmatch(part) else part for part in parts.path.rstrip("/").split("/"))
            port = f":{parts.port}" if parts.port not in (None, _PORTS.get(parts.scheme)) else ""
            host = parts.hostname or ""
            return f"{f'[{host}]' if ':' in host else host}{port}{path}" or self.kind
        if self.command:
            return name_of(self.command[0], self.command[1:])
        return self.kind.removeprefix("mcp.")

    @property
    def default_id(self) -> str:
        """Id of the hub, unless the application sets one."""
        return self.name or self.place

    @property
    def matched(self) -> tuple[str, ...]:
        """Texts that a pattern of the application is compared with."""
        scheme = f"{_split(self.url).scheme}://{self.place}" if self.url else None
        return tuple(text for text in (self.name, self.place, scheme) if text)


Choice: TypeAlias = "ObservedHub | str | float"
Hubs: TypeAlias = "Mapping[str, Choice] | Callable[[Endpoint], Choice | None]"
"""Hubs by pattern (`*` matches anything), or a function that returns the hub of an endpoint."""


def chooser_of(hubs: Hubs | None) -> Callable[[Endpoint], ObservedHub]:
    """Return a function that returns the hub of an endpoint, with its id.

    Args:
        hubs: The application's choice; None reads the variable `PELLUCID_HUBS`.

    Raises:
        ConfigError: a hub is invalid, or the variable is.
    """
    if callable(hubs):
        return lambda endpoint: _complete(_hub(hubs(endpoint)), endpoint)
    patterns = {pattern: _hub(choice) for pattern, choice in (_from_environment() if hubs is None else hubs).items()}

    def choose(endpoint: Endpoint) -> ObservedHub:
        texts = endpoint.matched
        found = (hub for pattern, hub in patterns.items() if any(_fits(text, pattern) for text in texts))
        return _complete(next(found, None), endpoint)

    return choose


def _fits(text: str, pattern: str) -> bool:
    return text == pattern or fnmatchcase(text, pattern)  # a text may have brackets, as the address of IPv6


def _complete(hub: ObservedHub | None, endpoint: Endpoint) -> ObservedHub:
    if hub is None:
        return ObservedHub(endpoint.default_id)
    return ObservedHub(hub.id or endpoint.default_id, hub.objective)


def _hub(choice: object) -> ObservedHub | None:
    if choice is None or isinstance(choice, ObservedHub):
        return choice
    if isinstance(choice, str):
        return ObservedHub(choice)
    if isinstance(choice, int | float) and not isinstance(choice, bool):
        return ObservedHub(objective=choice)
    raise ConfigError(f"{choice!r} is not a hub; use ObservedHub(id=, objective=), its id, or its objective in seconds")


def _from_environment() -> dict[str, Choice]:
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return {}
    try:
        value: Any = json.loads(text)
        return {pattern: ObservedHub(**one) if isinstance(one, dict) else one for pattern, one in value.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{VARIABLE} is not what hubs= takes, as JSON, such as "
            f'{{"mcp.example.com/*": {{"objective": 0.5}}}}: {error}'
        ) from error


def _split(url: str) -> SplitResult:
    """Return the parts of a URL; those of an invalid URL are empty."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (raises if it is not a number)
    except ValueError:
        return SplitResult("", "", "", "", "")
    return parts
