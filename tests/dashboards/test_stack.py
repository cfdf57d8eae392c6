"""docker-compose.yml and the configuration that it mounts, without a container engine.

The schema is the compose specification's; Prometheus 2.42 reads what it knows of its configuration. The rest is checked
against what the parts must agree on.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import pellucid_dashboards
from pellucid import semconv
from pellucid_commands.demo import session
from pellucid_commands.view.serving import PORT
from pellucid_dashboards.relay import command
from pellucid_exporters.options import Prometheus
from support.compose_files import example_targets
from support.docker_build import is_ignored
from support.prometheus_server import program, prometheus_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parent.parent.parent
FILES = Path(pellucid_dashboards.__file__).parent / "files"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
VIEWER = f"http://localhost:{PORT}"


def read(path: str) -> Any:
    """Return a configuration file."""
    return yaml.safe_load((FILES / path).read_text())


def urls(value: Any) -> Iterator[str]:
    """Return `host:port` of every address in a configuration that leads to another service."""
    yield from re.findall(rf"\b(?:http://)?((?:{'|'.join(SERVICES)}):\d+)(?![\d.])", json.dumps(value))


# --- docker-compose.yml -----------------------------------------------------------------------------------------------


def test_compose_follows_the_specification() -> None:
    """The compose specification's own JSON Schema accepts the file."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",
            ROOT / "docker-compose.yml",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", SERVICES)
def test_only_this_machine_gets_in(name: str) -> None:
    """Every published port is bound to loopback, and keeps its number."""
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port)


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_says_whether_it_is_well(name: str) -> None:
    """Each service has a health check without a shell, and waits until the services that it depends on are healthy."""
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    for other, condition in SERVICES[name].get("depends_on", {}).items():
        assert other in SERVICES
        assert condition == {"condition": "service_healthy"}


def test_images_are_pinned() -> None:
    """Each image has a version with three parts, except those that are built here."""
    texts = [(ROOT / "docker-compose.yml").read_text(), (ROOT / "Dockerfile").read_text()]
    images = [image for text in texts for image in re.findall(r"(?:image:|FROM) (\S+)", text)]
    others = [image for image in images if not re.search(r":v?\d+\.\d+\.\d+(-\w+)?$", image)]
    assert len(images) == 12
    python = "python:3.13-slim-bookworm"
    assert sorted(others) == ["pellucid-relay:local", "pellucid:local", python, python, "relay"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened(name: str) -> None:
    """Each service has no rights, a read-only root, and limits of processors, processes and logs."""
    service = SERVICES[name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service["cpus"] > 0
    assert service["pids_limit"] > 0
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"relay", "demo"}))
def test_servers_in_go_collect_garbage_before_their_limit(name: str) -> None:
    """Go's soft limit is three quarters to nine tenths of what the container may use."""
    units = {"m": 1, "g": 1024}
    limit = SERVICES[name]["mem_limit"]
    most = int(limit[:-1]) * units[limit[-1]]
    soft = int(SERVICES[name]["environment"]["GOMEMLIMIT"].removesuffix("MiB"))
    assert 0.75 * most <= soft <= 0.9 * most


def test_prometheus_keeps_as_much_as_the_disk_has() -> None:
    """Prometheus has a limit in days and one in bytes for the data that it keeps."""
    options = " ".join(SERVICES["prometheus"]["command"])
    assert "--storage.tsdb.retention.time=" in options
    assert "--storage.tsdb.retention.size=" in options


def test_only_the_demo_has_git() -> None:
    """The image of the relay has no git, and that of the demo is made from it."""
    stages = dict(re.findall(r"(?ms)^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", (ROOT / "Dockerfile").read_text()))
    assert {name: "git" in stage for name, stage in stages.items()} == {"build": False, "relay": False, "demo": True}
    for name in ("relay", "demo"):
        assert SERVICES[name]["build"] == {"context": ".", "target": name}
        assert stages[name].rstrip().splitlines()[-1] != "USER root"


def test_what_the_image_copies_is_there() -> None:
    """Each path that the Dockerfile copies exists, and `.dockerignore` lets it into the build."""
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    paths = [path for line in lines for path in line.split()]
    assert len(paths) >= 8
    assert [path for path in paths if not (ROOT / path).exists() or is_ignored(path)] == []


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_there(name: str) -> None:
    """Each folder of ours that is mounted exists, read-only; each other volume is declared."""
    for volume in SERVICES[name].get("volumes", []):
        source, _, *mode = volume.split(":")
        if source.startswith("."):
            assert (ROOT / source).is_dir()
            assert mode == ["ro"]
        else:
            assert source in COMPOSE["volumes"]


@pytest.mark.parametrize("name", ["alertmanager", "jaeger", "loki", "otel-collector", "prometheus"])
def test_configuration_is_mounted_where_it_is_looked_for(name: str) -> None:
    """The configuration file in a service's command line lies in the folder that is mounted there."""
    [path] = re.findall(r"--config(?:\.file)?[= ](\S+)", " ".join(SERVICES[name]["command"]))
    [source] = [volume.split(":")[0] for volume in SERVICES[name]["volumes"] if volume.startswith("./")]
    mounted = next(volume.split(":")[1] for volume in SERVICES[name]["volumes"] if volume.startswith("./"))
    assert (ROOT / source / Path(path).relative_to(mounted)).is_file()


def test_every_volume_is_used() -> None:
    """Each volume that is declared is used by a service."""
    mounts = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    assert set(COMPOSE["volumes"]) == {mount for mount in mounts if not mount.startswith(".")}


def test_nobody_has_a_default_password() -> None:
    """Grafana does not start without a password for its administrator, and lets all others only look."""
    environment = SERVICES["grafana"]["environment"]
    assert environment["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_PASSWORD:?")
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert ".env" in (ROOT / ".gitignore").read_text().split()


def test_whoever_may_look_may_follow_links_to_traces() -> None:
    """Links and exemplars lead to Explore, which Grafana opens to viewers only if they may edit for themselves."""
    texts = [file.read_text() for file in (FILES / "grafana/dashboards").iterdir()]
    assert any("/explore?" in text for text in texts)
    assert SERVICES["grafana"]["environment"]["GF_USERS_VIEWERS_CAN_EDIT"] == "true"


def test_no_empty_password_is_left_where_it_cannot_be_made(tmp_path: Path) -> None:
    """Make leaves no `.env` if Python fails, so that the next call makes a password."""
    command = ["make", "-f", str(ROOT / "Makefile"), ".env", "PYTHON=/no/such/python"]
    assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode != 0
    assert not (tmp_path / ".env").exists()


def test_make_writes_a_password_of_its_own(tmp_path: Path) -> None:
    """Make writes another password for each checkout, readable by its owner only, and a second call leaves it."""
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        for _ in range(2):
            subprocess.run(["make", "-f", ROOT / "Makefile", ".env"], cwd=folder, check=True, capture_output=True)
            found.append((folder / ".env").read_text())
        assert (folder / ".env").stat().st_mode & 0o077 == 0
    assert found[0] == found[1] != found[2] == found[3]
    assert re.fullmatch(r"GRAFANA_PASSWORD=[\w-]{20,}\n", found[0])


def test_applications_find_the_stack_at_the_defaults_of_the_sdk() -> None:
    """The Collector listens where the SDK sends by default, and examples of scrapes have the SDK's own port."""
    assert SERVICES["otel-collector"]["ports"] == ["127.0.0.1:4317:4317", "127.0.0.1:4318:4318"]
    [example] = yaml.safe_load(example_targets())
    assert example["targets"] == [f"host.docker.internal:{Prometheus().port}"]
    assert f":{session.PORT}/" in SERVICES["demo"]["healthcheck"]["test"][-1]


def test_services_call_each_other_where_they_listen() -> None:
    """Each address of another service has a port that this service is configured to listen on."""
    listens = {
        "alertmanager": {9093},
        "grafana": {3000},
        "loki": {read("loki/config.yaml")["server"]["http_listen_port"]},
        "prometheus": {9090},
        "relay": {command.PORT},
        "otel-collector": _ports(read("otel-collector/config.yaml")),
        "jaeger": _ports(read("jaeger/config.yaml")),
        "demo": {session.PORT},
    }
    configurations = [yaml.safe_load(file.read_text()) for file in FILES.rglob("*.y*ml")]
    called = {call for value in (COMPOSE, *configurations) for call in urls(value)}
    assert len(called) >= 8
    assert {call for call in called if int(call.split(":")[1]) not in listens[call.split(":")[0]]} == set()
    published = {(name, int(port.split(":")[2])) for name in SERVICES for port in SERVICES[name].get("ports", [])}
    assert {(name, port) for name, port in published if port not in listens[name]} == set()


def _ports(config: Mapping[str, Any]) -> set[int]:
    text = json.dumps({**config, "exporters": {}})
    found = re.findall(r'"endpoint": "0\.0\.0\.0:(\d+)"|"port": (\d+)', text)
    return {int(endpoint or port) for endpoint, port in found}


# --- collector and Jaeger ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["otel-collector/config.yaml", "jaeger/config.yaml"])
def test_pipelines_refer_to_what_is_defined(path: str) -> None:
    """Each component of a pipeline is defined, each that is defined is used, and the health check is among them."""
    config = read(path)
    service = config["service"]
    for kind in ("receivers", "processors", "exporters"):
        used = {name for pipeline in service["pipelines"].values() for name in pipeline[kind]}
        assert used == set(config[kind])
    assert set(service["extensions"]) == set(config["extensions"])
    assert {name.startswith("health") for name in service["extensions"]} >= {True}


def test_the_collector_takes_all_that_applications_send() -> None:
    """There is a pipeline for traces, metrics and logs each: an application is refused nothing."""
    config = read("otel-collector/config.yaml")
    assert set(config["service"]["pipelines"]) == {"traces", "metrics", "logs"}
    for pipeline in config["service"]["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter"


def test_jaeger_stores_where_it_reads() -> None:
    """Exporter and query use one backend, which lies in a volume."""
    config = read("jaeger/config.yaml")
    [(name, backend)] = config["extensions"]["jaeger_storage"]["backends"].items()
    assert config["extensions"]["jaeger_query"]["storage"]["traces"] == name
    assert config["exporters"]["jaeger_storage_exporter"]["trace_storage"] == name
    assert backend["badger"]["directories"]["keys"].startswith("/tmp/")
    assert "jaeger:/tmp" in SERVICES["jaeger"]["volumes"]


def test_jaeger_leads_to_runs() -> None:
    """Jaeger links each trace, and each id of a run in it, to the viewer, by a file that is mounted."""
    shown = read("jaeger/config.yaml")["extensions"]["jaeger_query"]["ui"]["config_file"]
    assert shown == "/etc/jaeger/ui.json"
    assert "./dashboards/pellucid_dashboards/files/jaeger:/etc/jaeger:ro" in SERVICES["jaeger"]["volumes"]
    trace, run = read("jaeger/ui.json")["linkPatterns"]
    assert (trace["type"], trace["url"]) == ("traces", f"{VIEWER}/traces/#{{traceID}}")
    assert (run["type"], run["key"]) == ("tags", semconv.RUN_ID)
    assert run["url"] == f"{VIEWER}/runs/#{{{semconv.RUN_ID}}}/"


# --- Prometheus -------------------------------------------------------------------------------------------------------

ONLY_3 = {"scrape_native_histograms", "always_scrape_classic_histograms"}


def for_2_42(folder: Path) -> dict[str, Any]:
    """Return our configuration of Prometheus without what only Prometheus 3 knows, with absolute paths."""
    config: dict[str, Any] = read("prometheus/prometheus.yml")
    assert config.pop("otlp") == {"translation_strategy": "UnderscoreEscapingWithSuffixes"}
    for scrape in config["scrape_configs"]:
        assert {key for key in scrape if "histogram" in key} <= ONLY_3
        for key in ONLY_3:
            scrape.pop(key, None)
        for discovery in scrape.get("file_sd_configs", []):
            discovery["files"] = [str(folder / file) for file in discovery["files"]]
    config["rule_files"] = [str(FILES / "prometheus" / file) for file in config["rule_files"]]
    return config


@pytest.mark.prometheus
def test_prometheus_reads_its_configuration(tmp_path: Path) -> None:
    """Promtool accepts the configuration of Prometheus that version 2.42 knows, and the files of targets."""
    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(for_2_42(FILES / "prometheus")))
    done = subprocess.run([program("promtool"), "check", "config", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
@pytest.mark.integration
def test_targets_are_read_as_they_are_written(tmp_path: Path) -> None:
    """The shipped file names no target; its example, without the comment signs, is one with the service's job."""
    targets = tmp_path / "targets"
    targets.mkdir()
    shutil.copy(FILES / "prometheus/targets/applications.yml", targets)
    config = for_2_42(tmp_path)
    config["alerting"] = {}
    config["scrape_configs"] = [scrape for scrape in config["scrape_configs"] if scrape["job_name"] == "pellucid"]
    with prometheus_server(config, features=["exemplar-storage"]) as server:
        assert server.api("targets")["activeTargets"] == []
        (targets / "more.yml").write_text(example_targets())
        [target] = server.until(lambda: server.api("targets")["activeTargets"])
        assert target["labels"] == {"instance": "host.docker.internal:9464", "job": "support"}


def test_prometheus_is_started_for_what_the_dashboards_need() -> None:
    """Prometheus keeps exemplars, takes OTLP, and scrapes native histograms without classic buckets."""
    given = SERVICES["prometheus"]["command"]
    assert "--web.enable-otlp-receiver" in given
    assert "--enable-feature=exemplar-storage,created-timestamp-zero-ingestion" in given
    config = read("prometheus/prometheus.yml")
    assert config["storage"]["exemplars"]["max_exemplars"] > 0
    [scrape] = [scrape for scrape in config["scrape_configs"] if scrape["job_name"] == "pellucid"]
    assert {key: scrape[key] for key in ONLY_3} == {
        "scrape_native_histograms": True,
        "always_scrape_classic_histograms": False,
    }


# --- Grafana ----------------------------------------------------------------------------------------------------------


def test_data_sources_have_the_uids_that_dashboards_use() -> None:
    """Prometheus, Jaeger, Loki and Alertmanager have their names; exemplars and log lines lead to Jaeger and runs."""
    found = {source["uid"]: source for source in read("grafana/provisioning/datasources/pellucid.yml")["datasources"]}
    assert {uid: source["type"] for uid, source in found.items()} == {
        "prometheus": "prometheus",
        "jaeger": "jaeger",
        "loki": "loki",
        "alertmanager": "alertmanager",
    }
    inside, outside, run = found["loki"]["jsonData"]["derivedFields"]
    assert inside["matcherRegex"] == outside["matcherRegex"] == run["matcherRegex"] == "trace_id"
    assert inside["datasourceUid"] == "jaeger"
    assert outside["url"].startswith("http://localhost:16686/trace/$${")
    assert run["url"].startswith(f"{VIEWER}/traces/$${{")
    options = found["prometheus"]["jsonData"]
    assert options["alertmanagerUid"] == "alertmanager"
    inside, outside, run = options["exemplarTraceIdDestinations"]
    assert inside == {"name": "trace_id", "datasourceUid": "jaeger"}
    assert outside["name"] == run["name"] == "trace_id"
    assert outside["url"].startswith("http://localhost:16686/trace/$${")
    assert run["url"].startswith(f"{VIEWER}/traces/$${{")


def test_dashboards_are_mounted_where_grafana_looks() -> None:
    """The folder of Grafana's provider, in which the home dashboard is, is the mounted one."""
    [provider] = read("grafana/provisioning/dashboards/pellucid.yml")["providers"]
    path = provider["options"]["path"]
    assert f"./dashboards/pellucid_dashboards/files/grafana/dashboards:{path}:ro" in SERVICES["grafana"]["volumes"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{path}/pellucid-overview.json"
