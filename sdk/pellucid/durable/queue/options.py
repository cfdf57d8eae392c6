"""Options of a queue on NATS."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from pellucid.durable.queue.subjects import Names
from pellucid.errors import ConfigError

_SCHEMES: Final = ("nats", "tls", "ws", "wss")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Limits of each stream that the queue creates. Beyond them the oldest messages are deleted.

    Attributes:
        max_age: Seconds that messages are kept.
        max_bytes: Bytes of a stream.
        replicas: Servers of a cluster that keep a copy.
    """

    max_age: float = 7 * 86_400.0
    max_bytes: int = 256 * 1024 * 1024
    replicas: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.max_age < math.inf) or self.max_bytes < 1 or not 1 <= self.replicas <= 5:  # noqa: PLR2004  (NATS)
            raise ConfigError(f"{self}: max_age and max_bytes must be positive, replicas 1 to 5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `NATSQueue`, which documents them."""

    servers: tuple[str, ...] = field(repr=False)
    names: Names
    ack_wait: float
    max_deliveries: int
    limits: StreamLimits
    is_managed: bool
    buffer: int
    connect_options: Mapping[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.ack_wait < math.inf:
            raise ConfigError(f"NATSQueue(ack_wait={self.ack_wait!r}): must be at least 1 second")
        if self.max_deliveries < 1 or self.buffer < 1:
            raise ConfigError(
                f"NATSQueue(max_deliveries={self.max_deliveries!r}, buffer={self.buffer!r}): both must be at least 1"
            )


def servers_of(url: str) -> tuple[str, ...]:
    """Return the servers of a URL, which may list several with commas between.

    Raises:
        ConfigError: one of them is not valid; the message holds no credentials.
    """
    servers = tuple(server.strip() for server in url.split(",") if server.strip())
    if not servers or not all(map(_is_valid, servers)):
        raise ConfigError(
            "NATSQueue: the URL must be nats://host:port, tls://, ws:// or wss://; commas between several"
        )
    return servers


def places_of(servers: tuple[str, ...]) -> str:
    """Return hosts and ports without credentials, for logs."""
    return ", ".join(urlsplit(server).netloc.rpartition("@")[2] for server in servers)


def _is_valid(server: str) -> bool:
    try:
        parts = urlsplit(server)
        return parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        return False
