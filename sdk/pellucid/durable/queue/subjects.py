"""Names of subjects, streams and consumers."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from pellucid.errors import ConfigError

_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_NAME: Final = 200
"""Maximum characters of the name of a consumer; the server accepts 255."""


@dataclass(frozen=True, slots=True)
class Names:
    """Subjects and streams of one prefix.

    Raises:
        ConfigError: the prefix is not 1 to 64 letters, digits, `_` and `-`.
    """

    prefix: str

    def __post_init__(self) -> None:
        if not _PREFIX.fullmatch(self.prefix):
            raise ConfigError(f"NATSQueue(prefix={self.prefix!r}): must be 1 to 64 letters, digits, '_' or '-'")

    def stream(self, kind: str) -> str:
        """Return the name of the stream of a kind of message."""
        return f"{self.prefix}_{kind}"

    def subject(self, kind: str, key: str) -> str:
        """Return the subject of messages about an agent or a run."""
        return f"{self.prefix}.{kind}.{token(key)}"

    @property
    def readers(self) -> str:
        """Subject of messages that say which runs are read."""
        return f"{self.prefix}.readers"

    def all(self, kind: str) -> str:
        """Return the pattern of all subjects of a kind of message."""
        return f"{self.prefix}.{kind}.*"


def token(text: str) -> str:
    """Return a text as one token of a subject: letters, digits, `-`, `_` and `~`, other bytes of UTF-8 as `=2E`.

    Not `%2E`: servers use the names of consumers, which are such tokens, as formats.
    """
    return quote(text, safe="").replace(".", "%2E").replace("%", "=")


def text_of(subject: str) -> str:
    """Return the text of the last token of a subject."""
    return unquote(subject.rpartition(".")[2].replace("=", "%"))


def consumer_of(agent: str) -> str:
    """Return the name of the consumer of an agent's work."""
    name = token(agent)
    return name if len(name) <= _MAX_NAME else hashlib.sha256(agent.encode()).hexdigest()
