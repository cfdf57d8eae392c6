"""Our rules, unchanged, page for hubs of clients that were not written with Pellucid."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.processes import python
from support.shipped_rules import page_for_a_slow_and_a_hanging_hub

pytestmark = [pytest.mark.integration, pytest.mark.prometheus]

RAW_CLIENT = Path(__file__).parents[1] / "frameworks" / "raw_client.py"


def test_people_are_told_of_a_slow_and_of_a_hanging_hub(tmp_path: Path) -> None:
    """`ToolHubSlow` and `ToolHubHanging` fire on a real Prometheus; the second one while the request hangs."""
    page_for_a_slow_and_a_hanging_hub(python(), RAW_CLIENT, tmp_path, **os.environ)
