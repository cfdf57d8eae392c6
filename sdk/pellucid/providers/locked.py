"""Listing of a hub's tools against a lock file: tools that differ or are new are withheld, or only reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from pellucid.errors import ConfigError
from pellucid.events import ToolsRedefined
from pellucid.providers.listing import Lister
from pellucid.semconv.names import PROVIDER_ID
from pellucid.semconv.tool_locks import CATALOG_REDEFINED, DEFINITION_CHANGES, TOOL_CHANGE
from pellucid.tools.catalog import ProviderCatalog
from pellucid.tools.lock import Difference, ToolLock

if TYPE_CHECKING:
    from pellucid.context import DiscoveryContext
    from pellucid.providers.provider import ToolProvider
    from pellucid.telemetry import Boundary, Scope

MAX_DIFF: Final = 2_000
"""Most characters of the difference that an event has."""

_ignoring: ContextVar[bool] = ContextVar("pellucid_lock_ignored", default=False)


@contextmanager
def ignoring_locks() -> Iterator[None]:
    """Make agents in this block without their lock files, which need not exist."""
    token = _ignoring.set(True)
    try:
        yield
    finally:
        _ignoring.reset(token)


def locked(agent: str, listers: Sequence[Lister], options: Mapping[str, Any]) -> tuple[Lister, ...]:
    """Return the listers of an agent with those of its `providers` compared to the lock file.

    Raises:
        ConfigError: the lock file cannot be used, or there is none although the options say what to do with it.
    """
    refuses = options.get("on_change", "refuse") == "refuse"
    if options.get("lock") is None and not refuses:
        raise ConfigError(f"{agent}: on_change='report' has no meaning without lock='pellucid.lock'")
    if options.get("lock") is None or _ignoring.get():
        return tuple(listers)
    try:
        lock = ToolLock.read(options["lock"])
    except ConfigError as error:
        raise ConfigError(f"{agent}: {error}") from error.__cause__
    given = [id(provider) for provider in options.get("providers", ())]
    return tuple(
        LockedLister(lister.provider, lock, refuses=refuses, serves_stale=lister.serves_stale)
        if id(lister.provider) in given
        else lister
        for lister in listers
    )


def hubs_of(setup: Any) -> Sequence[Lister]:
    """Return the listers of an agent's `providers`, without those of its own tools and skills."""
    listers: Sequence[Lister] = setup.listers
    return listers[1 if setup.tools else 0 : len(listers) - (1 if setup.skills else 0)]


@dataclass(frozen=True, kw_only=True, eq=False)
class LockedCatalog(ProviderCatalog):
    """Tools of one provider, some of which differ from the lock file.

    Attributes:
        differences: The tools that differ or are new.
        refuses: Whether they are withheld: `tools` has only the others.
    """

    differences: tuple[Difference, ...]
    refuses: bool

    @property
    def why(self) -> Iterator[tuple[str, str]]:
        """Names of the tools that differ, each with what has happened to it."""
        what = {"changed": "differs from the lock file", "new": "is not in the lock file"}
        outcome = "withheld" if self.refuses else "only reported"
        return ((each.name, f"it {what[each.change]}; {outcome}") for each in self.differences)


class LockedLister(Lister):
    """Lister that compares each new catalogue with a lock file, once.

    Args:
        provider: The provider.
        lock: The lock file.
        refuses: Whether tools that differ are withheld.
        serves_stale: As for `Lister`.
    """

    def __init__(self, provider: ToolProvider, lock: ToolLock, *, refuses: bool, serves_stale: bool) -> None:
        super().__init__(provider, serves_stale=serves_stale)
        self._lock_file = lock
        self._refuses = refuses

    def _catalog_of(self, tools: tuple[Any, ...]) -> ProviderCatalog:
        whole = super()._catalog_of(tools)
        differences = tuple(self._lock_file.listed(whole.provider_id, whole.tools))
        if not differences:
            return whole
        changes: dict[str, Any] = {field.name: getattr(whole, field.name) for field in fields(ProviderCatalog)}
        if self._refuses:
            names = {difference.name for difference in differences}
            changes["tools"] = tuple(tool for tool in whole.tools if tool.name not in names)
        return LockedCatalog(**changes, differences=differences, refuses=self._refuses)

    def _note(self, scope: Scope, b: Boundary, ctx: DiscoveryContext, catalog: ProviderCatalog) -> None:
        super()._note(scope, b, ctx, catalog)
        if not isinstance(catalog, LockedCatalog):
            return
        b.attributes({CATALOG_REDEFINED: len(catalog.differences)})
        known = {difference.mark for difference in _before(scope, catalog.provider_id)}
        for difference in catalog.differences:
            if difference.mark not in known:
                _report(scope, b, difference, refused=catalog.refuses)


def _before(scope: Scope, provider_id: str) -> Iterable[Difference]:
    """Return the differences of a provider's latest catalogue in this run, which are reported."""
    for catalog in scope.listed[1] if scope.listed is not None else ():
        if catalog.provider_id == provider_id and isinstance(catalog, LockedCatalog):
            return catalog.differences
    return ()


def _report(scope: Scope, b: Boundary, difference: Difference, *, refused: bool) -> None:
    """Count and emit a difference."""
    scope.count(DEFINITION_CHANGES, 1, {PROVIDER_ID: difference.hub, TOOL_CHANGE: difference.change}, b.context)
    if not scope.has_listener(ToolsRedefined.name):
        return
    payload = {
        "tool_name": difference.name,
        "provider_id": difference.hub,
        "digest": difference.mark[1],
        "previous_digest": difference.locked.digest if difference.locked is not None else None,
        "after": "lock",
        "refused": refused,
        "diff": scope.guarded("recording", lambda: scope.capturer.text(difference.text, MAX_DIFF)),
    }
    scope.emit(ToolsRedefined, b.span.get_span_context(), payload)
