"""Ways in which the job process returns its results: to the store, or to a server over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
import requests
from opentelemetry.propagate import inject

from pellucid_commands.demo.durable.agent import PATIENCE

if TYPE_CHECKING:
    from pellucid.durable_runs import DurableRuns

TIMEOUT: Final = 10.0
"""Seconds in which the server must answer."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the result of one call is returned. Attributes: url: to complete it; token: allows that, and no more."""

    result_id: str
    url: str | None
    token: str | None


@dataclass(frozen=True, slots=True)
class StoreAnswers:
    """Results to the store."""

    runs: DurableRuns

    async def settle(self, address: Address, output: dict[str, Any]) -> str:
        """Return a result; return whether it was `settled`, a `duplicate`, `late` or in `conflict`."""
        return (await self.runs.settle(address.result_id, output=output)).outcome

    async def heartbeat(self, address: Address) -> None:
        """Extend the deadline of a call."""
        await self.runs.heartbeat(address.result_id, extend=PATIENCE)


class HTTPAnswers:
    """Results to a server, with the token of each call; needs no store."""

    async def settle(self, address: Address, output: dict[str, Any]) -> str:
        """Return a result; the span of the request is below the current one."""
        headers: dict[str, str] = {}
        inject(headers)
        answer = await self._post(address, "complete", {"status": "completed", "output": output}, headers)
        if answer.status_code == requests.codes.conflict:
            return "late" if answer.json()["status"] in ("expired", "cancelled") else "conflict"
        answer.raise_for_status()
        return "settled" if answer.status_code == requests.codes.accepted else "duplicate"

    async def heartbeat(self, address: Address) -> None:
        """Extend the deadline of a call, without a span."""
        answer = await self._post(address, "heartbeat", {"extend": PATIENCE}, {"traceparent": _UNSAMPLED})
        if answer.status_code != requests.codes.conflict:  # it has expired
            answer.raise_for_status()

    async def _post(self, address: Address, verb: str, body: Any, headers: dict[str, str]) -> requests.Response:
        assert address.url is not None
        url = f"{address.url.removesuffix('complete')}{verb}"
        headers = {**headers, "Authorization": f"Bearer {address.token}"}
        return await anyio.to_thread.run_sync(
            lambda: requests.post(url, json=body, headers=headers, timeout=TIMEOUT, allow_redirects=False)
        )


_UNSAMPLED: Final = f"00-{1:032x}-{1:016x}-00"
"""W3C Trace Context that asks the server not to record its span."""
