"""All dashboards, and the generator of their shipped files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pellucid_dashboards.dashboard_files import FOLDER, to_json
from pellucid_dashboards.grafana import (
    external_work,
    overview,
    runs_and_models,
    telemetry_health,
    tool_hubs,
    tool_servers,
    tools,
)

if TYPE_CHECKING:
    from pathlib import Path


def dashboards() -> dict[str, dict[str, Any]]:
    """Return all dashboards by uid."""
    modules = (overview, tool_hubs, runs_and_models, tools, tool_servers, external_work, telemetry_health)
    return {module.UID: module.dashboard() for module in modules}


def write_dashboards(folder: Path = FOLDER) -> None:
    """Write each dashboard to `<uid>.json`, and remove files of dashboards that no longer exist."""
    folder.mkdir(parents=True, exist_ok=True)
    found = dashboards()
    for stale in set(folder.glob("*.json")) - {folder / f"{uid}.json" for uid in found}:
        stale.unlink()
    for uid, dashboard in found.items():
        (folder / f"{uid}.json").write_text(to_json(dashboard), encoding="utf-8")
