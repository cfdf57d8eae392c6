"""Shipped dashboards, adapted to the data sources of a Grafana; requires only the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER: Final = Path(__file__).parent / "files" / "grafana" / "dashboards"
SHIPPED_UIDS: Final = {"prometheus": "prometheus", "jaeger": "jaeger"}
"""Uids of the data sources in the files, by type."""


def shipped_dashboards(uids: Mapping[str, str] = SHIPPED_UIDS) -> dict[str, dict[str, Any]]:
    """Return the shipped dashboards by uid.

    Args:
        uids: Uids of the data sources `prometheus` and `jaeger` in the target Grafana.
    """
    found = {}
    for file in sorted(FOLDER.glob("*.json")):
        text = file.read_text(encoding="utf-8")
        jaeger = f"%22datasource%22%3A%22{SHIPPED_UIDS['jaeger']}%22"  # in links to Explore
        text = text.replace(jaeger, f"%22datasource%22%3A%22{quote(uids['jaeger'], safe='')}%22")
        found[file.stem] = _with_uid(json.loads(text), uids["prometheus"])
    return found


def _with_uid(value: Any, prometheus: str) -> Any:
    """Return JSON with another uid in references to the data source `prometheus`."""
    if isinstance(value, list):
        return [_with_uid(each, prometheus) for each in value]
    if not isinstance(value, dict):
        return value
    if value == {"type": "prometheus", "uid": SHIPPED_UIDS["prometheus"]}:
        return {"type": "prometheus", "uid": prometheus}
    return {key: _with_uid(each, prometheus) for key, each in value.items()}
