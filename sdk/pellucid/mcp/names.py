"""Names of a server's tools, made to fit what models accept."""

from __future__ import annotations

from collections.abc import Iterable

from pellucid.tools.names import fitted_names


def exposed_names(names: Iterable[str], server: str, *, prefix: bool) -> dict[str, str]:
    """Return the name that models are given for each of the server's names.

    A name that fits stays as it is, or becomes `mcp__<server>__<name>`; any other is made to fit, the same at every
    listing, and never equal to another.
    """
    wanted = {name: f"mcp__{server}__{name}" if prefix else name for name in names}
    fitted = fitted_names(wanted.values())
    return {name: fitted[full] for name, full in wanted.items()}
