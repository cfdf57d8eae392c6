"""The last catalogue of a run, in place of one that could not be listed again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pellucid import semconv
from pellucid.errors import DiscoveryError
from pellucid.events import ToolsCatalogStale
from pellucid.failures import error_kind_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pellucid.context import DiscoveryContext
    from pellucid.telemetry import Boundary, Scope
    from pellucid.tools.catalog import ProviderCatalog


def catalog_of_run(
    scope: Scope,
    b: Boundary,
    ctx: DiscoveryContext,
    error: DiscoveryError,
    provider_id: str,
    own: tuple[ProviderCatalog | None, float] | None,
    answered_at: float | None,
) -> ProviderCatalog:
    """Return the catalogue that a provider has listed in this pass, and mark the run as degraded.

    Not if the provider refuses the identity, whose rights may have been revoked; nor if rights are asked in each
    iteration by `gated_tools`; nor for other skills; nor what a rule has put in the provider's place.

    Args:
        scope: Telemetry of the run.
        b: Boundary of the listing.
        ctx: Context of the listing.
        error: Failure of the listing.
        provider_id: Id of the provider.
        own: Where rules decide, the last catalogue that the provider itself has listed.
        answered_at: Time of its last answer, on the monotonic clock.

    Raises:
        DiscoveryError: the given error, if there is no such catalogue.
    """
    catalogs: Sequence[ProviderCatalog]
    before, catalogs = scope.listed or (ctx, ())
    catalog = next((catalog for catalog in catalogs if catalog.provider_id == provider_id), None)
    is_other = before.active_skill_ids != ctx.active_skill_ids or (own is not None and own[0] is not catalog)
    is_refused = error_kind_of(error) == "auth" or isinstance(error.__cause__, PermissionError)
    if catalog is None or is_other or is_refused or "gated(" in provider_id:
        raise error
    b.note(cache="stale")
    if provider_id not in scope.degraded:
        scope.degraded.append(provider_id)
    payload = {"provider_id": provider_id, "seconds_over": time.monotonic() - (answered_at or time.monotonic())}
    facts = scope.error_facts(error)
    shown = {semconv.ERROR_TYPE: facts["error_type"], "exception.message": facts["error"]}
    b.event(ToolsCatalogStale.name, {name: value for name, value in shown.items() if value is not None})
    scope.emit(ToolsCatalogStale, b.span.get_span_context(), {**payload, **facts})
    return catalog
