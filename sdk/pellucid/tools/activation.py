"""Which lazy tools a run has activated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from opentelemetry.trace import SpanContext

from pellucid.errors import ToolError
from pellucid.events import ToolsActivated, ToolsDeactivated
from pellucid.messages import Message, ToolCall, ToolResult
from pellucid.telemetry import Scope
from pellucid.tools.catalog import Catalog, Denied
from pellucid.tools.collisions import Binding
from pellucid.tools.names import LAZY_DISCOVERY, TOOL_SEARCH
from pellucid.tools.permission import Permissions

META: Final = frozenset((TOOL_SEARCH, LAZY_DISCOVERY))


class Activation:
    """The lazy tools that a run has activated.

    Attributes:
        active: By name, in the order of activation.
        iterations: Iterations that only discovered tools, which do not count as iterations.
        most: How many of these there may be.
        permissions: Asked before a tool becomes active, if there is a policy.
    """

    __slots__ = ("_is_restored", "_kept", "active", "iterations", "most", "permissions")

    def __init__(self, most: int, permissions: Permissions | None) -> None:
        self.permissions = permissions
        self.active: dict[str, Binding] = {}
        self.iterations = 0
        self.most = most
        self._is_restored = False
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
        wanted = {name: catalog.lazy[name] for name in names if name in catalog.lazy and name not in self.active}
        denied: Mapping[str, Denied] = {}
        if wanted and self.permissions is not None:
            denied = await self.permissions.activation(scope, span, wanted.values(), tool_call_id)
        for name, binding in wanted.items():
            if name not in denied:
                self.active[name] = binding
                payload = {"tool_name": name, "provider_id": binding.provider_id, "via": via}
                scope.emit(ToolsActivated, span, payload)
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
        """Activate what was active when it came to wait, or what its history says was discovered; once in a run.

        Raises:
            PolicyHalt: the policy ends the run.
        """
        if self._is_restored:
            return
        self._is_restored = True
        names, via = self._kept, "checkpoint"
        if names is None:
            names, via = [name for name, _ in discovered(history)], "history"
        await self.activate(scope, span, catalog, names, via=via)

    def revoke(self, scope: Scope, span: SpanContext, catalog: Catalog) -> None:
        """Forget tools that are no longer there: what is listed again later has to be discovered again."""
        for name, binding in list(self.active.items()):
            if (now := catalog.lazy.get(name)) is not None:
                self.active[name] = now
                continue
            if catalog.refusal(name) is not None:
                continue  # it has changed and is refused; should it be again what it was, it is active again
            del self.active[name]
            reason = "denied" if name in catalog.denied else "not_lazy" if name in catalog.bindings else "removed"
            payload = {"tool_name": name, "provider_id": binding.provider_id, "reason": reason}
            scope.emit(ToolsDeactivated, span, payload)


def discovered(history: Iterable[Message]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tools that results of discoveries in the history say were activated, and what these say of them.

    What is malformed says nothing.

    A history comes from the caller and may be forged. It can activate only what the catalogue lists anyway, which is
    what a model could do too.
    """
    asked: set[str] = set()
    for message in history:
        for part in message.parts:
            if isinstance(part, ToolCall) and message.role == "assistant" and part.name in META and part.id:
                asked.add(part.id)
            elif isinstance(part, ToolResult) and message.role == "tool" and part.id in asked and not part.is_error:
                yield from _found_in(part.response)


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
