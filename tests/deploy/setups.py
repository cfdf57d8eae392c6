"""The four set-ups for which the chart has values, as arguments of `pellucid export kubernetes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parent.parent.parent
CHART: Final = ROOT / "deploy" / "helm" / "pellucid"
SETUPS: Final = {
    "telemetry": ["--part=telemetry", "--prometheus-uid=mimir", "--jaeger-uid=traces"],
    "collectors": [],
    "durable": ["--agent=app.agents:support", "--image=registry.example.org/app:1.4", "--secret=agents"],
    "no-operators": ["--no-operators", "--agent=app.agents:support"],
}
"""By the names of the files of values in the chart's folder `ci`."""


def objects(text: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the objects of a stream of YAML by kind and name, each there once."""
    found = [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in found}
    assert len(by_name) == len(found)
    return by_name


def pod_specs(found: dict[tuple[str, str], dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the templates of pods among objects."""
    return {key: each["spec"]["template"] for key, each in found.items() if key[0] in ("Deployment", "DaemonSet")}
