"""Signatures of callbacks, by the Standard Webhooks specification (https://www.standardwebhooks.com), version 1."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from typing import Final, cast

from pellucid.errors import ConfigError, InvalidCallback
from pellucid.types import JSONObject

PREFIX: Final = "whsec_"
"""Beginning of a key as text, which is base64."""

TOLERANCE: Final = 300.0
"""Seconds by which the clocks of sender and receiver may differ."""

_MIN_KEY: Final = 24
_MAX_KEY: Final = 64
"""Bytes of a key."""

_VERSION: Final = "v1,"


def keys_of(owner: str, keys: Sequence[str | bytes]) -> tuple[bytes, ...]:
    """Return keys as bytes.

    Raises:
        ConfigError: there is no key, or one has another form; the message starts with `owner`.
    """
    found = tuple(_decoded(key) if isinstance(key, str) else key for key in keys)
    if not found or not all(_MIN_KEY <= len(key) <= _MAX_KEY for key in found):
        raise ConfigError(
            f"{owner} needs one or more keys: {PREFIX} and {_MIN_KEY} to {_MAX_KEY} bytes in base64; make one with: "
            f'echo "{PREFIX}$(head -c 32 /dev/urandom | base64)"'
        )
    return found


def signed(message_id: str, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """Return the headers of a message, with a signature by each key."""
    timestamp = str(int(time.time()))
    signatures = (_signature(message_id, timestamp, body, key) for key in keys)
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": " ".join(signatures)}


def verify_callback(
    body: bytes, headers: Mapping[str, str], *keys: str | bytes, tolerance: float = TOLERANCE
) -> JSONObject:
    """Verify a callback, and return the state of the run in it: the JSON of `GET /runs/{id}`, with its `version`.

    The same message may come twice, with the same `webhook-id`. A receiver that was away gets the latest state only.

    Args:
        body: Body of the request, as received.
        headers: Headers of the request; their names in any case.
        *keys: Keys of the sender, `whsec_...` or bytes. A signature by one of them is enough.
        tolerance: Seconds by which the timestamp may differ from this clock; older messages may be repeated by someone
            who has seen them.

    Raises:
        InvalidCallback: the request is not signed by one of the keys, or not now; do nothing, and answer 401.
        ConfigError: there is no key, or one has another form.
    """
    known = keys_of("verify_callback", keys)
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, timestamp, signatures = (given[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
    except KeyError as error:
        raise InvalidCallback(f"the header {error} is missing") from error
    expected = [_signature(message_id, timestamp, body, key).encode() for key in known]
    matches = [hmac.compare_digest(item.encode(), own) for item in signatures.split(" ") for own in expected]
    if not any(matches):
        raise InvalidCallback("no signature is by one of the keys")
    if not (timestamp.isascii() and timestamp.isdigit()) or abs(time.time() - float(timestamp)) > tolerance:
        raise InvalidCallback(f"the timestamp is not within {tolerance:g} seconds of this clock")
    return cast("JSONObject", json.loads(body))


def _signature(message_id: str, timestamp: str, body: bytes, key: bytes) -> str:
    content = f"{message_id}.{timestamp}.".encode("utf-8", "replace") + body
    return _VERSION + base64.b64encode(hmac.digest(key, content, "sha256")).decode()


def _decoded(key: str) -> bytes:
    """Return the bytes of a key; none if it has another form."""
    try:
        return base64.b64decode(key.removeprefix(PREFIX), validate=True) if key.startswith(PREFIX) else b""
    except binascii.Error:
        return b""
