"""Activation of lazy tools in a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from opentelemetry.trace import SpanContext

from pellucid.errors import ToolError
from pellucid.events import ToolsActivated, ToolsDeactivated
from pellucid.messages import Message, ToolResult
from pellucid.selection.permission import Permissions
from pellucid.telemetry import Scope
from pellucid.tools.catalog import Catalog, Denied
from pellucid.tools.collisions import Binding
from pellucid.tools.names import LAZY_DISCOVERY, TOOL_SEARCH

META: Final = frozenset((TOOL_SEARCH, LAZY_DISCOVERY))
_EARLIER: Final = -1
"""Iteration of tools that were last used in an earlier run."""


class Activation:
    """The lazy tools that a run has activated.

    Attributes:
        scope: Telemetry of the run.
        active: Active tools by name, in order of activation.
        iterations: Iterations that only discovered tools; they do not count against `Limits.max_iterations`.
        max_discoveries: Maximum number of iterations that only discover tools.
        permissions: Policy that must allow an activation, if there is one.
        preset: Tools that were active when the run paused, to start with instead of those in its history.
    """

    def __init__(self, scope: Scope, permissions: Permissions | None, max_discoveries: int) -> None:
        self.scope = scope
        self.permissions = permissions
        self.active: dict[str, Binding] = {}
        self.iterations = 0
        self.max_discoveries = max_discoveries
        self._read = 0
        self._used: dict[str, int] = {}
        self.preset: Sequence[str] | None = None

    @property
    def names(self) -> list[str]:
        """Names of the active tools, in order of activation."""
        return list(self.active) if self._read or self.preset is None else list(self.preset)

    async def activate(
        self, span: SpanContext, catalog: Catalog, names: Sequence[str], *, via: str, tool_call_id: str | None = None
    ) -> Mapping[str, Denied]:
        """Activate the lazy tools among `names` that are in the catalogue, not yet active and not denied by the policy.

        Returns:
            The denied tools.

        Raises:
            PolicyHalt: the policy ends the run; nothing was activated.
        """
        inactive = {name: catalog.lazy[name] for name in names if name in catalog.lazy and name not in self.active}
        denied: Mapping[str, Denied] = {}
        if inactive and self.permissions is not None:
            denied = await self.permissions.denied(self.scope, span, "activation", inactive.values(), tool_call_id)
        for name, binding in inactive.items():
            if name not in denied:
                self.active[name] = binding
                payload = {"tool_name": name, "provider_id": binding.provider_id, "via": via}
                self.scope.emit(ToolsActivated, span, payload)
        for name in names:
            self._use(name, self.scope.iteration)
        return denied

    def count(self) -> None:
        """Count an iteration that only discovered tools, up to the maximum."""
        if self.iterations < self.max_discoveries:
            self.iterations += 1

    @property
    def is_over(self) -> bool:
        """True if the run may discover no more tools."""
        return self.iterations >= self.max_discoveries

    @property
    def way_out(self) -> str:
        """Text for the model if it then discovers or calls a tool that it does not have."""
        return (
            f"the limit of {self.max_discoveries} iterations that only discover tools is reached. "
            "Call one of the tools that you have, or answer."
        )

    def check(self) -> None:
        """Check that the run may discover more tools.

        Raises:
            ToolError: the limit is reached.
        """
        if self.is_over:
            raise ToolError(f"Not run: {self.way_out}", error_type="max_discoveries")

    async def restore(self, span: SpanContext, catalog: Catalog, history: Sequence[Message]) -> None:
        """Activate the preset tools or those active in the history; in later iterations, record which tools were used.

        Raises:
            PolicyHalt: the policy ends the run.
        """
        if self._read == 0:
            await self._restore(span, catalog, history)
        else:
            for name, _ in _answered(history[self._read :]):
                self._use(name, self.scope.iteration - 1)
        self._read = len(history)

    async def _restore(self, span: SpanContext, catalog: Catalog, history: Sequence[Message]) -> None:
        called = list(_answered(history))
        names, via = self.preset, "checkpoint"
        if names is None:
            # A tool that ran was active, even if its discovery is no longer in the history.
            succeeded = [name for name, result in called if not result.is_error]
            names, via = [*(name for name, _ in discovered(history)), *succeeded], "history"
        await self.activate(span, catalog, names, via=via)
        for name in [*self.active, *(name for name, _ in called)]:
            self._use(name, _EARLIER)
        last = history[_last_request(history) :]
        if last:  # calls without results belong to this iteration, those with results to the one before
            iteration = self.scope.iteration - 1 if len(last) > 1 else self.scope.iteration
            for name in [*(call.name for call in last[0].tool_calls), *(name for name, _ in discovered(last))]:
                self._use(name, iteration)

    def _use(self, name: str, iteration: int) -> None:
        """Record the last use of an active tool, and move the tool to the end."""
        if name in self.active:
            self._used.pop(name, None)
            self._used[name] = iteration

    def revoke(self, span: SpanContext, catalog: Catalog) -> None:
        """Deactivate tools that are no longer listed; if listed again later, they must be discovered again."""
        for name, binding in list(self.active.items()):
            if (now := catalog.lazy.get(name)) is not None:
                self.active[name] = now
                continue
            if catalog.refusal(name) is not None:
                continue  # it was redefined and is withheld; it stays active in case the redefinition is reverted
            reason = "denied" if name in catalog.denied else "not_lazy" if name in catalog.bindings else "removed"
            self._deactivate(span, binding, name, reason)

    def fit(self, span: SpanContext, catalog: Catalog, max_tokens: int) -> None:
        """Deactivate the least recently used tools until the active ones take at most `max_tokens` tokens.

        Tools that were activated or called in the last iteration stay active.
        """
        offered = {name: binding for name, binding in self.active.items() if name in catalog.lazy}
        excess = sum(binding.tool.tokens for binding in offered.values()) - max_tokens
        for name, last_use in list(self._used.items()):
            if excess <= 0 or last_use >= self.scope.iteration - 1:
                break
            if (binding := offered.get(name)) is not None:
                excess -= binding.tool.tokens
                self._deactivate(span, binding, name, "budget")

    def _deactivate(self, span: SpanContext, binding: Binding, name: str, reason: str) -> None:
        del self.active[name]
        self._used.pop(name, None)
        payload = {"tool_name": name, "provider_id": binding.provider_id, "reason": reason}
        self.scope.emit(ToolsDeactivated, span, payload)


def discovered(history: Iterable[Message]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the names and definitions of activated tools, from the results of discovering calls in the history.

    Malformed results are skipped. The history comes from the caller and may be forged; it can activate only tools that
    the catalogue lists, as a model could too.
    """
    for name, result in _answered(history):
        if name in META and not result.is_error:
            yield from _definitions_in(result.response)


def _answered(messages: Iterable[Message]) -> Iterator[tuple[str, ToolResult]]:
    """Yield the results of calls, with the names of their tools.

    Call ids are unique only within a message, and a result belongs to a call of the preceding message: the result of a
    tool that reuses the id of an earlier discovery must not count as that discovery.
    """
    names: dict[str | None, str] = {}
    for message in messages:
        if message.role == "assistant":
            names = {call.id: call.name for call in reversed(message.tool_calls)}  # the first of two with one id is run
        elif message.role == "tool":
            for part in message.parts:
                if isinstance(part, ToolResult) and part.id in names:
                    yield names[part.id], part


def _last_request(history: Sequence[Message]) -> int:
    """Return the index of the assistant message that the history ends with, before its results if there are any.

    If the history ends otherwise, return its length.
    """
    index = len(history) - 1
    while index > 0 and history[index].role == "tool":
        index -= 1
    return index if history[index].role == "assistant" else len(history)


def _definitions_in(response: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(response, str):
        try:
            response = json.loads(response)
        except (ValueError, RecursionError):
            return
    if not isinstance(response, dict):
        return
    listed: Any = response.get("tools")
    is_list = isinstance(listed, list)
    for item in listed if is_list else [response]:
        if isinstance(item, dict) and item.get("activated", is_list) is True and isinstance(item.get("name"), str):
            yield item["name"], item
