"""Which lazy tools a run has activated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from opentelemetry.trace import SpanContext

from pellucid.errors import ToolError
from pellucid.events import ToolsActivated, ToolsDeactivated
from pellucid.messages import Message, ToolResult
from pellucid.offer.permission import Permissions
from pellucid.telemetry import Scope
from pellucid.tools.catalog import Catalog, Denied
from pellucid.tools.collisions import Binding
from pellucid.tools.names import LAZY_DISCOVERY, TOOL_SEARCH

META: Final = frozenset((TOOL_SEARCH, LAZY_DISCOVERY))
_EARLIER: Final = -1
"""Stands for the iteration of what was used in an earlier run."""


class Activation:
    """The lazy tools that a run has activated.

    Attributes:
        active: By name, in the order of activation.
        iterations: Iterations that only discovered tools, which do not count as iterations.
        most: How many of these there may be.
        permissions: Asked before a tool becomes active, if there is a policy.
    """

    __slots__ = ("_kept", "_read", "_used", "active", "iterations", "most", "permissions")

    def __init__(self, most: int, permissions: Permissions | None) -> None:
        self.permissions = permissions
        self.active: dict[str, Binding] = {}
        self.iterations = 0
        self.most = most
        self._read = 0
        self._used: dict[str, int] = {}
        self._kept: Sequence[str] | None = None

    def take_up(self, names: Sequence[str]) -> None:
        """Begin with the tools that were active when a run came to wait, whatever its history says."""
        self._kept = names

    async def activate(
        self,
        scope: Scope,
        span: SpanContext,
        catalog: Catalog,
        names: Iterable[str],
        *,
        via: str,
        tool_call_id: str | None = None,
    ) -> Mapping[str, Denied]:
        """Activate tools that the catalogue has, that are lazy, not active already, and not denied by the policy.

        Returns:
            Those that are denied.

        Raises:
            PolicyHalt: the policy ends the run; nothing was activated.
        """
        names = list(names)
        wanted = {name: catalog.lazy[name] for name in names if name in catalog.lazy and name not in self.active}
        denied: Mapping[str, Denied] = {}
        if wanted and self.permissions is not None:
            denied = await self.permissions.activation(scope, span, wanted.values(), tool_call_id)
        for name, binding in wanted.items():
            if name not in denied:
                self.active[name] = binding
                payload = {"tool_name": name, "provider_id": binding.provider_id, "via": via}
                scope.emit(ToolsActivated, span, payload)
        for name in names:
            self._use(name, scope.iteration)
        return denied

    def count(self, *, only_discovered: bool) -> None:
        """Count an iteration if it only discovered tools, as long as there may be more of these."""
        if only_discovered and self.iterations < self.most:
            self.iterations += 1

    def check(self) -> None:
        """Refuse to discover for ever.

        Raises:
            ToolError: the run may not discover more.
        """
        if self.iterations >= self.most:
            raise ToolError(
                f"Not run: this run has only looked for tools in {self.most} iterations, and may not in more. "
                f"Call one of the tools that you have, or answer.",
                error_type="max_discoveries",
            )

    async def restore(self, scope: Scope, span: SpanContext, catalog: Catalog, history: Sequence[Message]) -> None:
        """Activate what was active when it came to wait, or what its history says was; later note what was called.

        Raises:
            PolicyHalt: the policy ends the run.
        """
        if self._read == 0:
            await self._begin(scope, span, catalog, history)
        else:
            for name, _ in _answered(history[self._read :]):
                self._use(name, scope.iteration - 1)
        self._read = len(history)

    async def _begin(self, scope: Scope, span: SpanContext, catalog: Catalog, history: Sequence[Message]) -> None:
        called = list(_answered(history))
        names, via = self._kept, "checkpoint"
        if names is None:
            # What was run had been active, also where the discovery is no longer in the history.
            ran = [name for name, result in called if not result.is_error]
            names, via = [*(name for name, _ in discovered(history)), *ran], "history"
        await self.activate(scope, span, catalog, names, via=via)
        for name in [*self.active, *(name for name, _ in called)]:
            self._use(name, _EARLIER)
        last = history[_last_asked(history) :]
        if last:  # calls that it goes on with were made in this iteration, and others in the one before
            when = scope.iteration - 1 if len(last) > 1 else scope.iteration
            for name in [*(call.name for call in last[0].tool_calls), *(name for name, _ in discovered(last))]:
                self._use(name, when)

    def _use(self, name: str, iteration: int) -> None:
        """Note when an active tool was used; what was used last stands at the end."""
        if name in self.active:
            self._used.pop(name, None)
            self._used[name] = iteration

    def revoke(self, scope: Scope, span: SpanContext, catalog: Catalog) -> None:
        """Forget tools that are no longer there: what is listed again later has to be discovered again."""
        for name, binding in list(self.active.items()):
            if (now := catalog.lazy.get(name)) is not None:
                self.active[name] = now
                continue
            if catalog.refuse(name) is not None:
                continue  # it has changed and is refused; should it be again what it was, it is active again
            reason = "denied" if name in catalog.denied else "not_lazy" if name in catalog.bindings else "removed"
            self._deactivate(scope, span, binding, name, reason)

    def fit(self, scope: Scope, span: SpanContext, catalog: Catalog, most: int) -> None:
        """Forget tools until those that are left take no more than `most` tokens: what was used longest ago goes first.

        What was activated or called in the last iteration stays; the model has just asked for it.
        """
        offered = {name: binding for name, binding in self.active.items() if name in catalog.lazy}
        over = sum(binding.tool.tokens for binding in offered.values()) - most
        for name, used in list(self._used.items()):
            if over <= 0 or used >= scope.iteration - 1:
                break
            if (binding := offered.get(name)) is not None:
                over -= binding.tool.tokens
                self._deactivate(scope, span, binding, name, "budget")

    def _deactivate(self, scope: Scope, span: SpanContext, binding: Binding, name: str, reason: str) -> None:
        del self.active[name]
        self._used.pop(name, None)
        payload = {"tool_name": name, "provider_id": binding.provider_id, "reason": reason}
        scope.emit(ToolsDeactivated, span, payload)


def discovered(history: Iterable[Message]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tools that results of discoveries in the history say were activated, and what these say of them.

    What is malformed says nothing.

    A history comes from the caller and may be forged. It can activate only what the catalogue lists anyway, which is
    what a model could do too.
    """
    for name, result in _answered(history):
        if name in META and not result.is_error:
            yield from _found_in(result.response)


def _answered(messages: Iterable[Message]) -> Iterator[tuple[str, ToolResult]]:
    """Yield the results of calls, and of which tool each is.

    Ids of calls are unique in a message only, and a result belongs to a call of the message before: a tool whose call
    has the id of an earlier discovery must not speak for it.
    """
    asked: dict[str | None, str] = {}
    for message in messages:
        if message.role == "assistant":
            asked = {call.id: call.name for call in reversed(message.tool_calls)}  # of two with one id the first is run
        elif message.role == "tool":
            for part in message.parts:
                if isinstance(part, ToolResult) and part.id in asked:
                    yield asked[part.id], part


def _last_asked(history: Sequence[Message]) -> int:
    """Return where the message stands whose calls the history ends with, answered or not; its end if there is none."""
    at = len(history) - 1
    while at > 0 and history[at].role == "tool":
        at -= 1
    return at if history[at].role == "assistant" else len(history)


def _found_in(response: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(response, str):
        try:
            response = json.loads(response)
        except (ValueError, RecursionError):
            return
    if not isinstance(response, dict):
        return
    listed: Any = response.get("tools")
    is_list = isinstance(listed, list)
    for each in listed if is_list else [response]:
        if isinstance(each, dict) and each.get("activated", is_list) is True and isinstance(each.get("name"), str):
            yield each["name"], each
