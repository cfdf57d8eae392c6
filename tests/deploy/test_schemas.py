"""Manifests against the schemas of Kubernetes and of operators, which `make test-kubernetes` gets."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from deploy.schemas import CACHE, KUBERNETES, errors, missing
from deploy.setups import CHART, ROOT, SETUPS, objects
from pellucid.cli import main

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def schemas() -> None:
    """Skip without the schemas."""
    if missing():
        pytest.skip(f"needs {missing()[0]} and others, which `make test-kubernetes` gets")


@pytest.mark.parametrize("name", SETUPS)
def test_schemas_take_what_is_exported(name: str, tmp_path: Path) -> None:
    """No object of a set-up has an unknown field, a wrong type or lacks a field."""
    assert main(["export", "kubernetes", str(tmp_path), *SETUPS[name]]) == 0
    files = [file for file in tmp_path.iterdir() if file.name != "kustomization.yaml"]
    found = {file.name: errors(yaml.safe_load(file.read_text())) for file in files}
    assert {file: said for file, said in found.items() if said} == {}


@pytest.mark.parametrize("kind", ["configmap", "grafana-operator"])
def test_schemas_take_exported_dashboards(kind: str, tmp_path: Path) -> None:
    """No dashboard has an unknown field, for Grafana's sidecar or its operator, by either command."""
    assert main(["dashboards", "export", str(tmp_path / "one"), "--format", kind]) == 0
    assert main(["export", "kubernetes", str(tmp_path / "two"), "--part=telemetry", "--dashboards", kind]) == 0
    one, two = (sorted((tmp_path / folder).glob("dashboard-*")) for folder in ("one", "two"))
    assert [file.read_text() for file in one] == [file.read_text() for file in two]
    assert [said for file in one for said in errors(yaml.safe_load(file.read_text()))] == []


@pytest.mark.parametrize("name", SETUPS)
def test_schemas_take_what_the_chart_renders(name: str) -> None:
    """The same of `helm template`."""
    values = f"--values={CHART / 'ci' / f'{name}.yaml'}"
    command = [str(CACHE / "helm"), "template", "pellucid", str(CHART), values, f"--kube-version={KUBERNETES}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = {key: errors(each) for key, each in objects(done.stdout).items()}
    assert {key: said for key, said in found.items() if said} == {}


@pytest.mark.parametrize("name", SETUPS)
def test_kustomize_builds_what_is_exported(name: str, tmp_path: Path) -> None:
    """`kustomize build` has all objects, in the namespace that was named."""
    assert main(["export", "kubernetes", str(tmp_path), *SETUPS[name], "--namespace=agents"]) == 0
    done = subprocess.run([CACHE / "kustomize", "build", tmp_path], capture_output=True, text=True, check=True)
    found = objects(done.stdout)
    assert len(found) == len(list(tmp_path.iterdir())) - 1
    assert {each["metadata"]["namespace"] for each in found.values()} == {"agents"}


def test_the_overlay_of_the_documentation_is_built(tmp_path: Path) -> None:
    """It labels all objects, and lets each PodMonitor look into all namespaces."""
    assert main(["export", "kubernetes", str(tmp_path / "manifests"), *SETUPS["durable"]]) == 0
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    [overlay] = re.findall(r"^```yaml\n(apiVersion: kustomize.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "kustomization.yaml").write_text(overlay)
    done = subprocess.run(
        [CACHE / "kustomize", "build", tmp_path / "overlay"], capture_output=True, text=True, check=True
    )
    found = objects(done.stdout)
    assert {each["metadata"]["labels"]["release"] for each in found.values()} == {"kube-prometheus-stack"}
    monitors = [each for (kind, _), each in found.items() if kind == "PodMonitor"]
    assert [each["spec"]["namespaceSelector"] for each in monitors] == [{"any": True}] * 2
    assert [said for each in monitors for said in errors(each)] == []


def test_schemas_take_the_examples_of_the_documentation() -> None:
    """Each manifest in docs/kubernetes.md is one that Kubernetes knows."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = [each for block in blocks for each in yaml.safe_load_all(block) if "apiVersion" in each]
    found = [each for each in found if each["kind"] != "Kustomization"]
    assert len(found) >= 4
    assert [said for each in found for said in errors(each)] == []


def test_schemas_refuse_what_is_wrong(tmp_path: Path) -> None:
    """The checks see a misspelled field, a wrong type and a missing field, of Kubernetes and of an operator."""
    assert main(["export", "kubernetes", str(tmp_path), *SETUPS["durable"]]) == 0
    deployment = yaml.safe_load((tmp_path / "server-deployment.yaml").read_text())
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["readinesProbe"] = container.pop("readinessProbe")
    deployment["spec"]["replicas"] = "two"
    assert len(errors(deployment)) == 2
    monitor = yaml.safe_load((tmp_path / "applications-podmonitor.yaml").read_text())
    del monitor["spec"]["selector"]
    monitor["spec"]["scrapeClassicHistogram"] = True
    assert json.dumps(errors(monitor)).count("scrapeClassicHistogram") == 1
    assert len(errors(monitor)) == 2
