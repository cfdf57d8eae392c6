"""`pellucid export kubernetes`: what it writes, without Kubernetes."""

from __future__ import annotations

import json
import shlex
import subprocess
from argparse import ArgumentParser
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from deploy.setups import SETUPS, objects, pod_specs
from pellucid.cli import GROUP, main
from pellucid.server.pages import PROBES
from pellucid_dashboards.dashboard_files import shipped_dashboards
from pellucid_dashboards.kubernetes.yaml_text import to_yaml
from pellucid_dashboards.rules import RULES_FILE
from support.prometheus_server import program

if TYPE_CHECKING:
    from collections.abc import Mapping

Objects = dict[tuple[str, str], dict[str, Any]]
ONE_MIB = 1024 * 1024
ANNOTATION = 256 * 1024


def export(folder: Path, *arguments: str) -> Objects:
    """Run the command, and return the objects that it wrote."""
    assert main(["export", "kubernetes", str(folder), *arguments]) == 0
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert {*kustomization["resources"], "kustomization.yaml"} == {file.name for file in folder.iterdir()}
    return objects("---\n".join((folder / name).read_text() for name in kustomization["resources"]))


@pytest.fixture(params=SETUPS)
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    """Return the objects of each set-up."""
    return export(tmp_path / "out", *SETUPS[request.param])


@pytest.fixture
def everything(tmp_path: Path) -> Objects:
    """Return the objects of a set-up with all parts."""
    return export(tmp_path / "out", *SETUPS["durable"])


def test_what_is_written_is_read_again() -> None:
    """Texts that look like numbers, words of YAML or several lines are the same after reading."""
    value = {
        "texts": ["on", "No", "1.4", "1e3", "null", "", "a: b", "- x", "#", "{a}", "é", "a/b", "%22"],
        "lines": "first\n  second\n\nthird\n",
        "empty": {"list": [], "mapping": {}, "none": None},
        "numbers": [1, 1.5, True],
        "nested": [[1, 2], {"a": {"b": ["c"]}, "d": "e\n"}],
        "1": "a key",
    }
    assert yaml.safe_load(to_yaml(value)) == value


def test_the_rules_are_those_of_the_file(everything: Objects) -> None:
    """The PrometheusRule has what `pellucid rules export` writes."""
    spec = everything["PrometheusRule", "pellucid-rules"]["spec"]
    assert spec == yaml.safe_load(RULES_FILE.read_text())


def test_alerts_have_the_labels_that_are_given(tmp_path: Path) -> None:
    """`--label` adds them to alerts, as for the file, with and without operators."""
    found = export(tmp_path / "out", "--part=telemetry", "--label=team=payments")
    groups = found["PrometheusRule", "pellucid-rules"]["spec"]["groups"]
    plain = export(tmp_path / "plain", "--part=telemetry", "--label=team=payments", "--no-operators")
    assert yaml.safe_load(plain["ConfigMap", "pellucid-rules"]["data"]["pellucid_rules.yml"])["groups"] == groups
    labels = [rule["labels"]["team"] for group in groups for rule in group["rules"] if "alert" in rule]
    assert set(labels) == {"payments"}


def test_rules_have_the_thresholds_that_are_set(tmp_path: Path) -> None:
    """`--set` changes a threshold, as for the file."""
    found = export(tmp_path / "out", "--part=telemetry", "--set", "runbook_base=https://wiki.example.org/r.md")
    assert "https://wiki.example.org/r.md#" in json.dumps(found["PrometheusRule", "pellucid-rules"])


@pytest.mark.prometheus
def test_promtool_takes_the_rules(everything: Objects, tmp_path: Path) -> None:
    """The specification of the PrometheusRule is a file of rules."""
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(everything["PrometheusRule", "pellucid-rules"]["spec"]))
    done = subprocess.run([program("promtool"), "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_are_those_that_are_shipped(tmp_path: Path) -> None:
    """Each is a ConfigMap with Grafana's label, asks the data sources that were named, and is small enough."""
    found = export(tmp_path / "out", *SETUPS["telemetry"])
    maps = [each for (kind, _), each in found.items() if kind == "ConfigMap"]
    texts = {name: text for each in maps for name, text in each["data"].items()}
    expected = shipped_dashboards({"prometheus": "mimir", "jaeger": "traces"})
    assert {name.removesuffix(".json"): json.loads(text) for name, text in texts.items()} == expected
    for each in maps:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        # `kubectl apply` keeps the object in an annotation, which is smaller than what a ConfigMap may be.
        assert len(json.dumps(each).encode()) < ANNOTATION < ONE_MIB


def test_all_pods_are_hardened(exported: Objects) -> None:
    """No pod runs as root, gains rights, writes to its image or takes all memory, also none of the operator's."""
    pods = [template["spec"] for template in pod_specs(exported).values()]
    for pod in pods:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    collectors = [each["spec"] for (kind, _), each in exported.items() if kind == "OpenTelemetryCollector"]
    assert all(each["podSecurityContext"]["runAsNonRoot"] for each in collectors)
    for container in [*(container for pod in pods for container in pod["containers"]), *collectors]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_whatever_selects_pods_finds_them(exported: Objects) -> None:
    """Workloads, Services and budgets select the pods of one workload; ports and probes name what is there."""
    pods = pod_specs(exported)
    labels = {name: template["metadata"]["labels"] for (_, name), template in pods.items()}
    for (kind, name), each in exported.items():
        if kind in ("Deployment", "DaemonSet", "PodDisruptionBudget", "Service"):
            wanted = each["spec"]["selector"] if kind == "Service" else each["spec"]["selector"]["matchLabels"]
            found = [pod for pod, given in labels.items() if wanted.items() <= given.items()]
            assert len(found) == 1, (kind, name)
        if kind == "Service":
            [container] = next(t for (_, n), t in pods.items() if n == found[0])["spec"]["containers"]
            assert {port["targetPort"] for port in each["spec"]["ports"]} <= _ports(container)
    for template in pods.values():
        [container] = template["spec"]["containers"]
        probes = [container[key] for key in container if key.endswith("Probe")]
        ports = {(probe.get("httpGet") or probe["tcpSocket"])["port"] for probe in probes}
        names = {port["name"] for port in container["ports"]}
        assert {port for port in ports if isinstance(port, str)} <= names
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def _ports(container: Mapping[str, Any]) -> set[int]:
    return {port["containerPort"] for port in container["ports"]}


def test_commands_take_the_arguments_of_containers(exported: Objects) -> None:
    """Relay, server and worker have options that the commands have, and probes that they answer."""
    commands = {point.name: point.load() for point in entry_points(group=GROUP) if point.name in PELLUCID}
    for template in pod_specs(exported).values():
        [container] = template["spec"]["containers"]
        if container["args"][0] not in PELLUCID:
            assert container["name"] == "collector"
            continue
        command, *arguments = container["args"]
        parser = ArgumentParser()
        commands[command].add_arguments(parser)
        parser.parse_args(arguments)  # ends the process if it does not take them
        paths = {container[key]["httpGet"]["path"] for key in container if "httpGet" in str(container[key])}
        assert paths == {"alerts": {"/-/healthy"}, "serve": PROBES, "worker": PROBES}[command]


PELLUCID = {"alerts", "serve", "worker"}


def test_jobs_are_the_names_of_services(everything: Objects) -> None:
    """The label that becomes the job is the service's name, as rules and searches for traces expect."""
    assert everything["PodMonitor", "pellucid-applications"]["spec"]["jobLabel"] == "pellucid/service"
    for name in ("server", "worker"):
        template = everything["Deployment", f"pellucid-{name}"]["spec"]["template"]
        [container] = template["spec"]["containers"]
        variables = {each["name"]: each.get("value") for each in container["env"]}
        assert variables["OTEL_SERVICE_NAME"] == template["metadata"]["labels"]["pellucid/service"]
        assert variables["OTEL_METRICS_EXPORTER"] == "none"  # they are scraped
    query = everything["ScaledObject", "pellucid-worker"]["spec"]["triggers"][0]["metadata"]["query"]
    assert 'job="pellucid-worker"' in query
    assert query[4 : query.index("{")] in RULES_FILE.read_text()


@pytest.mark.parametrize("arguments", SETUPS.values())
def test_agents_send_to_gateways_that_are_there(arguments: list[str], tmp_path: Path) -> None:
    """The addresses in agents' variables are Services, here or the operator's, and configurations use them."""
    found = export(tmp_path / "out", *arguments)
    for tier in ("agent", "gateway") if any(name == "pellucid-gateway" for _, name in found) else ():
        if "--no-operators" in arguments:
            config = yaml.safe_load(found["ConfigMap", f"pellucid-{tier}"]["data"]["collector.yaml"])
            kind = "DaemonSet" if tier == "agent" else "Deployment"
            env = found[kind, f"pellucid-{tier}"]["spec"]["template"]["spec"]["containers"][0]["env"]
            services = {name for kind, name in found if kind == "Service"}
            assert {"pellucid-agent-collector", "pellucid-gateway-collector"} <= services
            assert "pellucid-gateway-collector-headless" in services
        else:
            spec = found["OpenTelemetryCollector", f"pellucid-{tier}"]["spec"]
            config, env = spec["config"], spec["env"]
        used = {name for name in (each["name"] for each in env) if f"${{env:{name}}}" in json.dumps(config)}
        assert used == {each["name"] for each in env} - {"GOMEMLIMIT"}
        for kind in ("receivers", "processors", "exporters"):
            parts = {name for pipeline in config["service"]["pipelines"].values() for name in pipeline[kind]}
            assert parts == set(config[kind])
        assert set(config["service"]["pipelines"]) == {"traces", "metrics", "logs"}


def test_without_operators_there_is_nothing_of_theirs(tmp_path: Path) -> None:
    """Only kinds of Kubernetes itself are written, and pods say where their metrics are."""
    found = export(tmp_path / "out", *SETUPS["no-operators"])
    assert {each["apiVersion"] for each in found.values()} == {"v1", "apps/v1", "policy/v1"}
    assert yaml.safe_load(found["ConfigMap", "pellucid-rules"]["data"]["pellucid_rules.yml"])["groups"]
    ports = {
        name: template["metadata"].get("annotations", {}).get("prometheus.io/port")
        for (_, name), template in pod_specs(found).items()
    }
    assert ports == {
        "pellucid-agent": "8888",
        "pellucid-gateway": "8888",
        "pellucid-relay": None,
        "pellucid-server": "8000",
        "pellucid-worker": "9464",
    }


def test_names_begin_with_the_name_that_is_given(tmp_path: Path) -> None:
    """Two set-ups in one namespace do not share objects; the kustomization has the namespace."""
    found = export(tmp_path / "out", "--name=team-a", "--namespace=agents", "--agent=a:b")
    assert all(name.startswith("team-a-") for _, name in found)
    assert "pellucid-" not in json.dumps(found["Deployment", "team-a-worker"]["spec"]["template"])
    assert yaml.safe_load((tmp_path / "out/kustomization.yaml").read_text())["namespace"] == "agents"


@pytest.mark.parametrize(
    "arguments",
    [
        "--name Upper",
        f"--name {'a' * 40}",
        "--prometheus banana",
        "--traces-endpoint http://jaeger:4317",
        "--agent support",
        "--part kitchen",
        "--set banana=1",
        "--label severity=page",
    ],
)
def test_options_that_make_no_sense_are_refused(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is 2, the message names the option or the value, and nothing is written."""
    try:
        code = main(["export", "kubernetes", str(tmp_path / "out"), *shlex.split(arguments)])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert arguments.rsplit(maxsplit=1)[-1].split("=", maxsplit=1)[0] in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names it."""
    (tmp_path / "out").write_text("")
    assert main(["export", "kubernetes", str(tmp_path / "out")]) == 2
    assert str(tmp_path / "out") in capsys.readouterr().err
