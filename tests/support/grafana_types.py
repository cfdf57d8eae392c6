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

PACKAGES: Final = ("@grafana/schema@13.2.3", "typescript@7.0.2")
PANELS: Final = {
    "heatmap": "Heatmap",
    "stat": "Stat",
    "state-timeline": "StateTimeline",
    "table": "Table",
    "timeseries": "TimeSeries",
}

_UNREACHED: Final = re.compile(r"code (E[A-Z_]*(TIMEDOUT|CONN|NOTFOUND|AGAIN|TIMEOUT|UNREACH)|E5\d\d|E429|ERR_SOCKET)")
"""npm's codes of a registry that it cannot reach, or that is out of order."""

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
type Annotation = AnnotationQuery<Query> & { titleFormat?: string; textFormat?: string; step?: string };
type Board = Json<Omit<Dashboard, 'panels' | 'annotations'> & {
  panels: (Known | (Omit<RowPanel, 'type'> & { type: 'row' }))[];
  annotations?: { list?: Annotation[] };
}>;
"""


def complaints(dashboards: Mapping[str, Mapping[str, Any]], folder: Path) -> list[str]:
    """Return what is wrong with dashboards, each line with the name of its file; installs the types into `folder`."""
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
    config = {"compilerOptions": {**options, "skipLibCheck": True, "types": []}, "include": ["*.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(config))
    (folder / "board.ts").write_text(_module())
    for uid, dashboard in dashboards.items():
        text = json.dumps(dashboard, indent=2, ensure_ascii=False)
        (folder / f"{uid}.ts").write_text(
            f"import type {{ Board }} from './board';\nexport const board: Board = {text};\n"
        )
    checked = subprocess.run(
        ["node_modules/.bin/tsc", "-p", "."], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return [line for line in checked.stdout.splitlines() if not line.startswith(" ")] + checked.stderr.splitlines()


def _module() -> str:
    """Return the type `Board`: Grafana's `Dashboard` with panels whose options are those of their kinds."""
    known = ["AnnotationQuery", "Dashboard", "DataQuery", "FieldConfigSource", "Panel", "RowPanel"]
    lines = [f"import type {{ {', '.join(known)} }} from '@grafana/schema';"]
    kinds = []
    for kind, name in PANELS.items():
        folder = kind.replace("-", "")
        module = f"@grafana/schema/dist/esm/raw/composable/{folder}/panelcfg/x/{name}PanelCfg_types.gen"
        lines.append(f"import type * as {name} from '{module}';")
        kinds.append(f"Of<'{kind}', {name}.Options, {'{}' if kind == 'stat' else f'{name}.FieldConfig'}>")
    types = _TYPES.replace("type Board", "export type Board")
    return "\n".join([*lines, types, f"type Known = {' | '.join(kinds)};", ""])


def _give_up(reason: str) -> None:
    complain = pytest.fail if os.environ.get("PELLUCID_REQUIRE_SERVICES") else pytest.skip
    complain(reason)
