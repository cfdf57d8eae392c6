"""TypeScript's opinion on dashboards, by Grafana's own types (`@grafana/schema`, which has no other schema)."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest

from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERSIONS: Final = {"11": "11.6.16", "12": "12.4.11", "13": "13.2.3"}
"""Of `@grafana/schema`, by major version of Grafana."""
PACKAGES: Final = (
    *(f"schema{major}@npm:@grafana/schema@{version}" for major, version in VERSIONS.items()),
    "typescript@7.0.2",
)
PANELS: Final = {
    "heatmap": "Heatmap",
    "stat": "Stat",
    "state-timeline": "StateTimeline",
    "table": "Table",
    "timeseries": "TimeSeries",
}
SEARCHES: Final = {"tempo": "TempoQuery", "loki": "LokiDataQuery"}
"""Types of queries in links, which are part of the packages up to 12."""

_UNREACHED: Final = re.compile(r"code (E[A-Z_]*(TIMEDOUT|CONN|NOTFOUND|AGAIN|TIMEOUT|UNREACH)|E5\d\d|E429|ERR_SOCKET)")
"""npm's codes of a registry that it cannot reach, or that is out of order."""

_RAW: Final = "dist/esm/raw/composable"

_TYPES: Final = """
// Enumerations are strings and numbers in JSON.
type Json<T> = T extends string ? `${T}`
  : T extends number ? (`${T}` extends `${infer N extends number}` ? N : T)
  : T extends (infer E)[] ? Json<E>[]
  : T extends object ? { [K in keyof T]: Json<T[K]> }
  : T;
type Of<Type extends string, Options, Custom> = Omit<Panel, 'type' | 'options' | 'fieldConfig'>
  & { type: Type; options?: Options; fieldConfig?: FieldConfigSource<Custom> };
// The data source's own parts of a query and of an annotation, which the package does not describe.
type Query = DataQuery & { expr: string; range?: boolean; instant?: boolean };
type Annotation = AnnotationQuery<Query> & { titleFormat?: string; textFormat?: string; step?: string }
  & { tagKeys?: string };
type Board = Json<Omit<Dashboard, 'panels' | 'annotations'> & {
  panels: (Known | (Omit<RowPanel, 'type' | 'panels'> & { type: 'row'; panels?: Known[] }))[];
  annotations?: { list?: Annotation[] };
}>;
"""


def complaints(
    dashboards: Mapping[str, Mapping[str, Any]], searches: Mapping[str, Mapping[str, Any]], folder: Path
) -> list[str]:
    """Return what is wrong by the types of each major version, which are installed into `folder`.

    Args:
        dashboards: By the names of their files.
        searches: Queries in links, by type of the data source.
        folder: A folder that is empty.

    Returns:
        Lines, each with major version and name of a file: `13/pellucid-tools.ts`.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            _give_up(f"the program {program!r} is not installed (Debian: apt-get install nodejs npm)")
    (folder / "package.json").write_text('{"private": true}')
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-save", *PACKAGES]
    try:
        installed = subprocess.run(install, cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not install Grafana's types in time: its registry is slow, or cannot be reached")
    if installed.returncode:
        reason = f"npm cannot install {' and '.join(PACKAGES)}: {installed.stderr.strip()[-500:]}"
        if _UNREACHED.search(installed.stderr):
            pytest.skip(reason)  # in CI, too: the registry is no server that the tests start
        _give_up(reason)
    options = {"strict": True, "noEmit": True, "module": "esnext", "moduleResolution": "bundler", "target": "es2022"}
    config = {"compilerOptions": {**options, "skipLibCheck": True, "types": []}, "include": ["*/*.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(config))
    for major in VERSIONS:
        (folder / major).mkdir()
        (folder / major / "board.ts").write_text(_module(major))
        for uid, dashboard in dashboards.items():
            _write(folder / major / f"{uid}.ts", "Board", dashboard)
        for kind, query in searches.items():
            if (folder / "node_modules" / f"schema{major}" / _RAW / kind).exists():
                _write(folder / major / f"{kind}.ts", SEARCHES[kind], query)
    checked = subprocess.run(
        ["node_modules/.bin/tsc", "-p", "."], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return [line for line in checked.stdout.splitlines() if not line.startswith(" ")] + checked.stderr.splitlines()


def _write(file: Path, kind: str, value: Mapping[str, Any]) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    imported = f"import type {{ {kind} }} from './board';"
    if kind != "Board":
        source = f"{file.stem}/dataquery/x/{kind.removesuffix('Query').removesuffix('Data')}DataQuery_types.gen"
        imported = (
            f"import type {{ Json }} from './board';\n"
            f"import type {{ {kind} as Query }} from '{_raw(file.parent.name)}/{source}';"
        )
        kind = "Json<Query>"
    file.write_text(f"{imported}\nexport const value: {kind} = {text};\n")


def _raw(major: str) -> str:
    """Return the folder of generated types, not all of which a package exports."""
    return f"../node_modules/schema{major}/{_RAW}"


def _module(major: str) -> str:
    """Return the type `Board`: Grafana's `Dashboard` with panels whose options are those of their kinds."""
    known = ["AnnotationQuery", "Dashboard", "DataQuery", "FieldConfigSource", "Panel", "RowPanel"]
    lines = [f"import type {{ {', '.join(known)} }} from 'schema{major}';"]
    kinds = []
    for kind, name in PANELS.items():
        folder = kind.replace("-", "")
        module = f"{_raw(major)}/{folder}/panelcfg/x/{name}PanelCfg_types.gen"
        lines.append(f"import type * as {name} from '{module}';")
        kinds.append(f"Of<'{kind}', {name}.Options, {'{}' if kind == 'stat' else f'{name}.FieldConfig'}>")
    types = _TYPES.replace("type Board", "export type Board").replace("type Json", "export type Json", 1)
    return "\n".join([*lines, types, f"type Known = {' | '.join(kinds)};", ""])


def _give_up(reason: str) -> None:
    complain = pytest.fail if os.environ.get("PELLUCID_REQUIRE_SERVICES") else pytest.skip
    complain(reason)
