"""Readiness: whether the hubs of an agent have answered."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from pydantic.alias_generators import to_camel

from pellucid.failures import error_type_of
from pellucid.providers.combination import Combined
from pellucid.providers.listing import Answers, Lister
from pellucid.providers.provider import ToolProvider
from pellucid.providers.wrappers import GatedTools
from pellucid.types import JSONObject

State: TypeAlias = Literal["unknown", "pending", "ready", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HubState:
    """State of one tool provider, as this agent has seen it.

    Attributes:
        provider_id: Id of the provider.
        state: `unknown` if it was not asked yet, `pending` if it was asked and has not answered yet, `ready` if it
            listed its tools the last time, `failed` if it failed the last time.
        is_required: Whether runs need it: they go on without a hub that has `patience`, or is in
            `combined(..., on_error="skip")`.
        tool_count: Number of tools in its last answer.
        age: Seconds since its last answer.
        error_type: Value of `error.type`, if it failed; its text is in the trace.
    """

    provider_id: str
    state: State
    is_required: bool
    tool_count: int | None = None
    age: float | None = None
    error_type: str | None = None


@dataclass(frozen=True, slots=True)
class Readiness:
    """Readiness of an agent; as a condition, it is true if the agent is ready.

    Attributes:
        is_ready: Whether each hub that runs need has answered at least once. A hub that fails later does not change
            that: a process without traffic would not help it.
        hubs: State of each tool provider.
    """

    is_ready: bool
    hubs: tuple[HubState, ...]

    def __bool__(self) -> bool:
        return self.is_ready

    def to_dict(self) -> JSONObject:
        """Return it as JSON, for the answer of a health check."""
        hubs = [{to_camel(name): value for name, value in asdict(hub).items()} for hub in self.hubs]
        return {"isReady": self.is_ready, "hubs": hubs}


def readiness_of(listers: Iterable[Lister]) -> Readiness:
    """Return the readiness of an agent with these providers."""
    hubs = tuple(_states(listers, is_required=True))
    return Readiness(all(hub.tool_count is not None for hub in hubs if hub.is_required), hubs)


def _states(listers: Iterable[Lister], *, is_required: bool) -> Iterator[HubState]:
    for lister in listers:
        provider = lister.provider
        is_needed = is_required and _is_needed(provider)
        if isinstance(provider, Combined):
            yield from _states(provider.listers, is_required=is_needed)
        else:
            yield _state(provider.id, lister.answers, is_required=is_needed)


def _is_needed(provider: ToolProvider) -> bool:
    """Return whether runs wait for the provider, and fail with it."""
    if getattr(provider, "patience", None) is not None:
        return False
    if isinstance(provider, GatedTools):
        return _is_needed(provider.inner)
    if isinstance(provider, Combined):
        return provider.on_error == "fail" and any(map(_is_needed, provider.providers))
    return True


def _state(provider_id: str, answers: Answers, *, is_required: bool) -> HubState:
    error, at = answers.error, answers.at
    state: State = "ready" if at is not None else "pending" if answers.asked or answers.is_outstanding else "unknown"
    return HubState(
        provider_id=provider_id,
        state="failed" if error is not None else state,
        is_required=is_required,
        tool_count=answers.tool_count,
        age=time.monotonic() - at if at is not None else None,
        error_type=error_type_of(error) if error is not None else None,
    )
