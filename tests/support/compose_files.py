"""The files that docker-compose.yml mounts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pellucid_dashboards

FILES: Final = Path(pellucid_dashboards.__file__).parent / "files"


def example_targets() -> str:
    """Return the example in the shipped file of targets, without the comment signs."""
    shipped = (FILES / "prometheus/targets/applications.yml").read_text().splitlines()
    return "\n".join(line.removeprefix("# ") for line in shipped if line.startswith(("# -", "#  ")))
