"""Storage of OAuth tokens and client registrations, in memory and in files."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeAlias

import anyio
from anyio import to_thread
from mcp.client.auth import TokenStorage
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from pellucid.concurrency.bounded_map import BoundedMap
from pellucid.context import Identity
from pellucid.errors import ConfigError
from pellucid.types import JSONObject

if sys.platform != "win32":
    import fcntl

LOCK_POLL: Final = 0.05
"""Seconds between attempts to lock a file."""

Tokens: TypeAlias = Callable[[str, Identity | None], TokenStorage]
"""Returns the storage for a server's URL and an identity; the MCP SDK defines `TokenStorage`."""

MOST_IN_MEMORY = 10_000


class MemoryTokens:
    """Tokens in memory, of the 10,000 pairs of server and identity that were used last."""

    def __init__(self) -> None:
        self._documents: BoundedMap[str, JSONObject] = BoundedMap(MOST_IN_MEMORY)

    def __call__(self, url: str, identity: Identity | None) -> TokenStorage:
        """Return the storage of an identity for a server."""
        return _Storage(_key(url, identity), self)

    @asynccontextmanager
    async def exclusive(self, key: str) -> AsyncIterator[None]:
        """Do nothing: the providers that share these tokens each renew them."""
        yield

    async def read(self, key: str) -> JSONObject:
        """Return what is stored."""
        return self._documents.get(key) or {}

    async def write(self, key: str, document: JSONObject) -> None:
        """Store something."""
        self._documents.put(key, document)


class FileTokens:
    """Tokens in a folder, in one file for each server and identity that only the user of the process can read (0600).

    Files are replaced as a whole, and one process at a time renews a token, so that processes may share the folder (on
    Windows, each renews it for itself). They hold secrets as plain text.

    Args:
        folder: The folder; it is made if it is not there.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).expanduser()

    def __call__(self, url: str, identity: Identity | None) -> TokenStorage:
        """Return the storage of an identity for a server."""
        return _Storage(_key(url, identity), self)

    async def read(self, key: str) -> JSONObject:
        """Return what is stored.

        Raises:
            ConfigError: the file was not written by this class.
        """
        return await to_thread.run_sync(self._read, key)

    async def write(self, key: str, document: JSONObject) -> None:
        """Store something."""
        await to_thread.run_sync(self._write, key, document)

    @asynccontextmanager
    async def exclusive(self, key: str) -> AsyncIterator[None]:
        """Keep other processes, and other objects of this one, from renewing the same token."""
        if sys.platform == "win32":
            yield
            return
        with await to_thread.run_sync(self._lock_file, key) as file:
            while not _is_locked(file):  # noqa: ASYNC110  (other processes cannot set an event)
                await anyio.sleep(LOCK_POLL)
            yield  # closing the file unlocks it

    def _lock_file(self, key: str) -> BinaryIO:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(key).with_suffix(".lock")
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "rb")

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def _read(self, key: str) -> JSONObject:
        path = self._path(key)
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ConfigError(f"{path} does not hold OAuth tokens; delete it, and authorize again")
        return document

    def _write(self, key: str, document: JSONObject) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(key)
        draft = path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(document, file)
        draft.replace(path)


def _is_locked(file: BinaryIO) -> bool:
    """Lock a file, and return whether that was possible at once."""
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Documents(Protocol):
    def exclusive(self, key: str) -> AbstractAsyncContextManager[None]: ...
    async def read(self, key: str) -> JSONObject: ...
    async def write(self, key: str, document: JSONObject) -> None: ...


class _Storage:
    """Storage of one server and identity, which keeps the time at which a token expires.

    Tokens are read with the seconds that are left of their lifetime, as if the server had just issued them.
    """

    def __init__(self, key: str, documents: _Documents) -> None:
        self._key = key
        self._documents = documents

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        return self._documents.exclusive(self._key)

    async def get_tokens(self) -> OAuthToken | None:
        document: dict[str, Any] = dict(await self._documents.read(self._key))
        if (tokens := document.get("tokens")) is None:
            return None
        if (expires_at := document.get("expires_at")) is not None:
            tokens = {**tokens, "expires_in": max(0, round(expires_at - time.time()))}
        return OAuthToken.model_validate(tokens)

    async def set_tokens(self, tokens: OAuthToken) -> None:
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        await self._update({"tokens": tokens.model_dump(mode="json", exclude_none=True), "expires_at": expires_at})

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        client = (await self._documents.read(self._key)).get("client")
        return None if client is None else OAuthClientInformationFull.model_validate(client)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        await self._update({"client": client_info.model_dump(mode="json", exclude_none=True)})

    async def _update(self, values: JSONObject) -> None:
        await self._documents.write(self._key, {**await self._documents.read(self._key), **values})


def _key(url: str, identity: Identity | None) -> str:
    holder = None if identity is None else [identity.tenant, identity.principal]
    return json.dumps([url, holder])
