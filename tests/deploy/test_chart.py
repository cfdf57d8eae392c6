"""The Helm chart: beside `pellucid export kubernetes`, which renders the same; helm is needed for what renders it."""

from __future__ import annotations

import base64
import gzip
import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
import yaml

from deploy.schemas import CACHE, KUBERNETES
from deploy.setups import CHART, SETUPS, objects
from pellucid.cli import main
from pellucid_dashboards.dashboard_files import FOLDER
from pellucid_dashboards.rules import RULES_FILE

if TYPE_CHECKING:
    from pathlib import Path

ONE_MIB = 1024 * 1024
OF_HELM = {"app.kubernetes.io/managed-by", "helm.sh/chart"}


def helm(*arguments: str, code: int = 0) -> str:
    """Run helm, or skip the test without it; return its output, or its errors if it was to fail."""
    if not (CACHE / "helm").exists():
        pytest.skip("needs the program helm, which `make test-kubernetes` builds")
    done = subprocess.run([CACHE / "helm", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def rendered(name: str, *arguments: str) -> str:
    """Return what the chart is for values of a set-up."""
    values = str(CHART / "ci" / f"{name}.yaml")
    return helm("template", "pellucid", str(CHART), f"--values={values}", f"--kube-version={KUBERNETES}", *arguments)


# --- without helm -----------------------------------------------------------------------------------------------------


def test_the_chart_has_no_second_copy() -> None:
    """Rules, dashboards and configurations of collectors are links to the shipped files."""
    links = [path for path in (CHART / "files").rglob("*") if not path.is_dir()]
    assert all(path.is_symlink() for path in links)
    configurations = [
        RULES_FILE.parent.parent / "kubernetes" / f"collector-{tier}.yaml" for tier in ("agent", "gateway")
    ]
    shipped = {RULES_FILE, *FOLDER.glob("*.json"), *configurations}
    assert {path.resolve() for path in links} == shipped, "make a link for each dashboard, and remove those of none"


def test_every_value_is_explained() -> None:
    """Each line of values.yaml with a value has a comment, on it or above it, but for contexts and images."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    bare = [line for line in lines if re.search(r"^\s*\w+: \S", line) and " # " not in line]
    explained = {"requests", "runAsNonRoot", "runAsGroup", "fsGroup", "seccompProfile", "allowPrivilegeEscalation"}
    explained |= {"readOnlyRootFilesystem", "capabilities"}
    assert {line.split(":")[0].strip() for line in bare} <= explained


def test_the_schema_takes_the_values_and_no_others() -> None:
    """Defaults and set-ups are valid; the schema names each value, so that a misspelled one is refused."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    validator = jsonschema_rs.validator_for(schema)
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    validator.validate(defaults)
    assert set(defaults) == set(schema["properties"]) - {"global"}
    for name in SETUPS:
        validator.validate(_merged(defaults, yaml.safe_load((CHART / "ci" / f"{name}.yaml").read_text())))
    wrong_values: list[Any] = [{"colector": {}}, {"relay": {"enabled": "yes"}}, {"durable": {"enabled": True}}]
    for wrong in wrong_values:
        assert not validator.is_valid(_merged(defaults, wrong))


def test_there_are_values_for_each_set_up() -> None:
    """The chart's folder `ci` has a file for each."""
    assert {file.stem for file in (CHART / "ci").iterdir()} == set(SETUPS)


def _merged(defaults: Any, values: Any) -> Any:
    if not isinstance(defaults, dict) or not isinstance(values, dict):
        return values
    return {**defaults, **{key: _merged(defaults.get(key), value) for key, value in values.items()}}


# --- with helm --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETUPS)
def test_helm_finds_nothing_to_complain_about(name: str) -> None:
    """`helm lint --strict` passes."""
    helm("lint", "--strict", str(CHART), f"--values={CHART / 'ci' / f'{name}.yaml'}", f"--kube-version={KUBERNETES}")


@pytest.mark.parametrize("name", SETUPS)
def test_the_chart_is_what_the_command_exports(name: str, tmp_path: Path) -> None:
    """Object by object, but for the labels of Helm and the policy of pulling images."""
    assert main(["export", "kubernetes", str(tmp_path), *SETUPS[name]]) == 0
    names = yaml.safe_load((tmp_path / "kustomization.yaml").read_text())["resources"]
    expected = objects("---\n".join((tmp_path / name).read_text() for name in names))
    found = objects(rendered(name))
    assert found.keys() == expected.keys()
    for key, each in found.items():
        assert _plain(each) == _plain(expected[key]), key


def _plain(value: Any) -> Any:
    """Return an object without what is Helm's, with lists of variables sorted and texts of files read."""
    if isinstance(value, list):
        found = [_plain(each) for each in value]
        named = all(isinstance(each, dict) and "name" in each for each in found)
        return sorted(found, key=lambda each: str(each["name"])) if named else found
    if not isinstance(value, dict):
        return value
    left = {key: each for key, each in value.items() if key not in {*OF_HELM, "imagePullPolicy"}}
    return {
        key: yaml.load(each, yaml.CSafeLoader) if key.endswith((".yml", ".yaml", ".json")) else _plain(each)
        for key, each in left.items()
    }


def test_a_release_fits_into_its_secret() -> None:
    """Helm keeps chart, values and manifest compressed in one secret of at most 1 MiB."""
    manifest = rendered("no-operators")
    files = [file for file in CHART.rglob("*") if file.is_file()]
    chart = {file.name: base64.b64encode(file.read_bytes()).decode() for file in files}
    release = gzip.compress(json.dumps({"chart": chart, "manifest": manifest}).encode(), 9)
    assert len(base64.b64encode(release)) < ONE_MIB / 2


def test_the_archive_has_what_links_lead_to(tmp_path: Path) -> None:
    """`helm package` puts rules, dashboards and configurations into the archive, which renders the same."""
    helm("package", str(CHART), f"--destination={tmp_path}")
    [archive] = tmp_path.glob("*.tgz")
    values = f"--values={CHART / 'ci' / 'durable.yaml'}"
    text = helm("template", "pellucid", str(archive), values, f"--kube-version={KUBERNETES}")
    assert objects(text) == objects(rendered("durable"))


def test_rules_of_your_own_replace_the_shipped_ones(tmp_path: Path) -> None:
    """A file of `pellucid rules export` given by `--set-file` is what the PrometheusRule has."""
    file = tmp_path / "rules.yml"
    assert main(["rules", "export", "--set", "hanging_after=77", "--out", str(file)]) == 0
    found = objects(rendered("telemetry", f"--set-file=rules.custom={file}"))
    assert found["PrometheusRule", "pellucid-rules"]["spec"] == yaml.safe_load(file.read_text())


def test_further_configuration_is_merged() -> None:
    """An exporter and a pipeline of a gateway's values are there beside those of the file."""
    found = objects(
        rendered(
            "collectors",
            "--set-json=collector.gateway.config="
            '{"exporters": {"otlp_http/loki": {"endpoint": "http://loki:3100/otlp"}},'
            ' "service": {"pipelines": {"logs": {"exporters": ["otlp_http/loki"]}}}}',
        )
    )
    config = found["OpenTelemetryCollector", "pellucid-gateway"]["spec"]["config"]
    assert config["service"]["pipelines"]["logs"]["exporters"] == ["otlp_http/loki"]
    assert config["service"]["pipelines"]["traces"]["exporters"] == ["otlp_grpc/traces"]
    assert {"otlp_http/loki", "otlp_http/metrics"} < set(config["exporters"])


def test_a_value_that_is_misspelled_is_refused() -> None:
    """Helm names it."""
    said = helm("template", "pellucid", str(CHART), "--set=colector.enabled=true", code=1)
    assert "colector" in said
