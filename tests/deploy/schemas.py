"""Schemas of Kubernetes and of operators, and the programs helm and kustomize, from Go modules into a cache.

`python -m deploy.schemas` gets what is missing; with `--there` it only says whether anything is. The cache is
`$XDG_CACHE_HOME/pellucid/kubernetes`, usually below `~/.cache`, and can be removed at any time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from functools import cache as memoized
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import yaml

from support.caches import cache

CACHE: Final = cache("kubernetes")

SCHEMAS: Final = {
    "k8s.io/kubernetes@v1.37.2": [
        f"api/openapi-spec/v3/{name}_openapi.json"
        for name in ("api__v1", "apis__apps__v1", "apis__batch__v1", "apis__policy__v1")
    ],
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": [
        f"example/prometheus-operator-crd/monitoring.coreos.com_{name}.yaml"
        for name in ("podmonitors", "prometheuses", "prometheusrules")
    ],
    "github.com/open-telemetry/opentelemetry-operator@v0.148.0": [
        "config/crd/bases/opentelemetry.io_opentelemetrycollectors.yaml"
    ],
    "github.com/grafana/grafana-operator/v5@v5.18.0": [
        "config/crd/bases/grafana.integreatly.org_grafanadashboards.yaml"
    ],
    "github.com/kedacore/keda/v2@v2.21.0": ["config/crd/bases/keda.sh_scaledobjects.yaml"],
}
"""Files of modules, which are small beside the modules themselves."""
PROGRAMS: Final = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "kustomize": "sigs.k8s.io/kustomize/kustomize/v5@v5.8.2",
}
KUBERNETES: Final = "1.37.2"


def missing() -> list[str]:
    """Return what is not in the cache."""
    files = [file for files in SCHEMAS.values() for file in files if not (CACHE / Path(file).name).exists()]
    return [*files, *(name for name in PROGRAMS if not (CACHE / name).exists())]


@memoized
def _schemas() -> dict[tuple[str, str], jsonschema_rs.Validator]:
    """Return validators by API version and kind, which refuse unknown fields as `kubectl --validate=strict` does."""
    found = {}
    for path in (CACHE / Path(file).name for files in SCHEMAS.values() for file in files):
        for version, kind, schema in _of_file(path):
            found[version, kind] = jsonschema_rs.validator_for(schema)
    return found


def errors(value: dict[str, Any]) -> list[str]:
    """Return what the schema of an object's kind refuses in it."""
    validator = _schemas()[value["apiVersion"], value["kind"]]
    return [f"{'/'.join(map(str, each.instance_path))}: {each.message[:300]}" for each in validator.iter_errors(value)]


def _of_file(path: Path) -> list[tuple[str, str, dict[str, Any]]]:
    found = []
    if path.suffix == ".json":
        components = _strict(json.loads(path.read_text())["components"])
        for name, schema in components["schemas"].items():
            for kind in schema.get("x-kubernetes-group-version-kind", []):
                version = f"{kind['group']}/{kind['version']}".lstrip("/")
                root = {"$ref": f"#/components/schemas/{name}", "components": components}
                found.append((version, kind["kind"], root))
        return found
    spec = yaml.safe_load(path.read_text())["spec"]
    for each in spec["versions"]:
        schema = _strict(each["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        found.append((f"{spec['group']}/{each['name']}", spec["names"]["kind"], schema))
    return found


def _strict(schema: Any) -> Any:
    """Return a schema that refuses fields it does not name, unless it says that they are kept."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value) for key, value in schema.items()}
    is_object = isinstance(found.get("properties"), dict) and isinstance(found.get("type"), str)
    if is_object and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    if found.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
    return found


def _go(*arguments: str) -> str:
    folders = {"GOPATH": str(CACHE / "go"), "GOCACHE": str(CACHE / "objects"), "GOBIN": str(CACHE)}
    environment = {**os.environ, **folders, "CGO_ENABLED": "0", "GOFLAGS": "-modcacherw", "GOTOOLCHAIN": "local"}
    done = subprocess.run(["go", *arguments], cwd=CACHE, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def _get() -> None:
    """Download schemas and build programs that are missing, and remove what they were made of."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for module, files in SCHEMAS.items():
        if all((CACHE / Path(file).name).exists() for file in files):
            continue
        print(f"{module} ...", flush=True)
        folder = json.loads(_go("mod", "download", "-json", module))["Dir"]
        for file in files:
            shutil.copyfile(Path(folder, file), CACHE / Path(file).name)
    for name, package in PROGRAMS.items():
        if not (CACHE / name).exists():
            print(f"{name}: building {package} ...", flush=True)
            _go("install", "-ldflags=-s -w", package)
    for name in ("go", "objects"):
        shutil.rmtree(CACHE / name, ignore_errors=True)


def main(*arguments: str) -> int:
    """Get what is missing, and print how long it took; `--there` only says what is missing."""
    if arguments == ("--there",):
        if missing():
            print(f"Kubernetes' schemas are not tried here: missing are {', '.join(missing())}; `make test-kubernetes`")
        return 1 if missing() else 0
    if not missing():
        return 0
    if shutil.which("go") is None:
        print("getting schemas and helm: the program 'go' is not installed: https://go.dev/doc/install")
        return 1
    started = time.monotonic()
    _get()
    print(f"{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
