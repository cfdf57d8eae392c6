"""Options of callbacks."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Final

from pellucid.durable.callbacks.addresses import Address, Allowed
from pellucid.durable.callbacks.signatures import keys_of, signed
from pellucid.errors import ConfigError

_MAX_DOUBLINGS: Final = 30
_LAST_SECOND: Final = 1.0
"""Seconds before the end in which no further attempt is made."""


class Callbacks:
    """Delivery of the states in which runs wait or have ended, to the URLs with which they were submitted.

    ```python
    DurableRuns(store, [agent], callbacks=Callbacks([key], allow=["https://app.example.org/hooks/"]))
    ```

    Needs the extra `server`.

    Args:
        keys: Secrets of 24 to 64 bytes, as bytes or as `whsec_` and base64. Each message is signed by all of them: to
            rotate, add a new key, give it to the receivers, and remove the old one.
        allow: URLs below which callbacks may be, such as `https://app.example.org/hooks/`. `http` only on this machine.
        timeout: Seconds in which the receiver must answer.
        first_delay: Seconds until the second attempt, at most; each further delay is twice as long. Half of a delay is
            random.
        max_delay: Longest delay, unless the receiver asks for a longer one by `Retry-After`.
        give_up_after: Seconds after which a state that was not accepted is given up.
        concurrency: Messages at the same time.

    Raises:
        ConfigError: an option is invalid, or httpx2 is not installed.
    """

    def __init__(
        self,
        keys: Sequence[str | bytes],
        allow: Iterable[str],
        *,
        timeout: float = 15.0,
        first_delay: float = 5.0,
        max_delay: float = 3600.0,
        give_up_after: float = 86_400.0,
        concurrency: int = 8,
    ) -> None:
        if find_spec("httpx2") is None:
            raise ConfigError("Callbacks needs httpx2: pip install 'pellucid[server]'")
        numbers = {
            "timeout": timeout,
            "first_delay": first_delay,
            "max_delay": max_delay,
            "give_up_after": give_up_after,
            "concurrency": concurrency,
        }
        for name, value in numbers.items():
            if not value > 0:
                raise ConfigError(f"Callbacks({name}={value!r}): must be positive")
        self.timeout = timeout
        self.concurrency = concurrency
        self._keys = keys_of("Callbacks", [keys] if isinstance(keys, str | bytes) else keys)
        self._allowed = Allowed(allow)
        self._first_delay = first_delay
        self._max_delay = max_delay
        self._give_up_after = give_up_after

    def check(self, url: str) -> Address:
        """Return the address of a URL that is allowed.

        Raises:
            CallbackRefused: it is not.
        """
        return self._allowed.check(url)

    def sign(self, message_id: str, body: bytes) -> dict[str, str]:
        """Return the headers of a message."""
        return signed(message_id, body, self._keys)

    def delay_after(self, attempts: int, age: float, retry_after: float | None) -> float | None:
        """Return the seconds until the next attempt; None if there is none.

        Args:
            attempts: Attempts so far.
            age: Seconds since the state became due.
            retry_after: Seconds that the receiver asked for.
        """
        left = self._give_up_after - age
        if left < _LAST_SECOND:
            return None
        delay = min(self._max_delay, self._first_delay * 2.0 ** min(attempts - 1, _MAX_DOUBLINGS))
        return min(max(delay * random.uniform(0.5, 1.0), retry_after or 0.0), left)  # noqa: S311  (no secret)
