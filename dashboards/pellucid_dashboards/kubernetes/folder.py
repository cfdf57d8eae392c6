"""A folder of manifests, with a kustomization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pellucid_dashboards.kubernetes.collector import collectors
from pellucid_dashboards.kubernetes.telemetry import dashboards, monitors, rules
from pellucid_dashboards.kubernetes.workloads import durable, relay
from pellucid_dashboards.kubernetes.yaml_text import to_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from pellucid_dashboards.kubernetes.setup import Setup

_HEADER = "# Made by Pellucid. Do not edit: patch it in an overlay, or export again.\n"


def manifests(setup: Setup) -> Iterator[dict[str, Any]]:
    """Yield all objects of a set-up."""
    if "telemetry" in setup.parts:
        yield rules(setup)
        yield from monitors(setup)
        yield from dashboards(setup)
    if "collector" in setup.parts:
        yield from collectors(setup)
    if "relay" in setup.parts:
        yield from relay(setup)
    if setup.agents:
        yield from durable(setup)


def write_folder(setup: Setup, folder: Path, objects: Iterable[dict[str, Any]] | None = None) -> Iterator[Path]:
    """Write objects of a set-up, a file each, and `kustomization.yaml`; yield each file that is written.

    Args:
        setup: The set-up.
        folder: Made if it is not there.
        objects: All of the set-up unless they are given.

    Raises:
        OSError: the folder is not writable.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for each in manifests(setup) if objects is None else objects:
        file = folder / f"{each['metadata']['name'].removeprefix(f'{setup.name}-')}-{each['kind'].lower()}.yaml"
        file.write_text(_HEADER + to_yaml(each), encoding="utf-8")
        names.append(file.name)
        yield file
    kustomization: dict[str, Any] = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    kustomization |= {"namespace": setup.namespace} if setup.namespace else {}
    kustomization["resources"] = names
    file = folder / "kustomization.yaml"
    file.write_text(_HEADER + to_yaml(kustomization), encoding="utf-8")
    yield file
