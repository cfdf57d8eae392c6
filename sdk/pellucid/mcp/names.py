"""Names of a server's tools, adapted to the names that models accept."""

from __future__ import annotations

from collections.abc import Iterable

from pellucid.tools.names import fitted_names


def exposed_names(names: Iterable[str], server: str, *, prefix: bool) -> dict[str, str]:
    """Map the server's names to the names that models see.

    A valid name is kept, or becomes `mcp__<server>__<name>` with `prefix`. Any other is changed to a valid one,
    which is unique and the same at every listing.
    """
    full_names = {name: f"mcp__{server}__{name}" if prefix else name for name in names}
    fitted = fitted_names(full_names.values())
    return {name: fitted[full] for name, full in full_names.items()}
