"""Shipped dashboards, adapted to the data sources of a Grafana; requires only the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pellucid.errors import ConfigError
from pellucid_dashboards.explore import (
    ANY,
    EXPLORE,
    LOGS,
    METRICS,
    TRACE,
    TRACES,
    explore,
    in_loki,
    in_tempo,
    query_of,
)

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable, Mapping

FOLDER: Final = Path(__file__).parent / "files" / "grafana" / "dashboards"
SHIPPED_UIDS: Final = {"prometheus": "prometheus", "jaeger": "jaeger"}
"""Uids of the data sources in the files, by type."""


def add_data_sources(parser: ArgumentParser) -> None:
    """Declare the options that name data sources."""
    default = SHIPPED_UIDS["prometheus"]
    parser.add_argument("--prometheus-uid", default=default, metavar="UID", help="uid of the metrics (%(default)s)")
    traces = parser.add_mutually_exclusive_group()
    default = SHIPPED_UIDS["jaeger"]
    traces.add_argument("--jaeger-uid", default=default, metavar="UID", help="uid of the traces (%(default)s)")
    traces.add_argument("--tempo-uid", metavar="UID", help="uid of the traces, if they are in Tempo")
    parser.add_argument("--loki-uid", metavar="UID", help="uid of the logs, if they are in Loki: adds links to them")


def data_sources(options: Namespace) -> dict[str, str]:
    """Return the uids of the data sources that were named, by type."""
    found = {"prometheus": options.prometheus_uid, "jaeger": options.jaeger_uid}
    if options.tempo_uid is not None:
        found = {"prometheus": options.prometheus_uid, "tempo": options.tempo_uid}
    return found if options.loki_uid is None else {**found, "loki": options.loki_uid}


def shipped_dashboards(uids: Mapping[str, str] = SHIPPED_UIDS) -> dict[str, dict[str, Any]]:
    """Return the shipped dashboards by uid.

    Args:
        uids: Uids of the data sources in the target Grafana: `prometheus`, `jaeger` or `tempo`, and maybe `loki`. They
            are what the variables of the dashboards are at first.
    """
    found = {}
    for file in sorted(FOLDER.glob("*.json")):
        board = json.loads(file.read_text(encoding="utf-8"))
        variables = {each["name"]: each for each in board["templating"]["list"]}
        _choose(variables[METRICS], "prometheus", uids["prometheus"])
        if TRACES in variables:
            kind = "tempo" if "tempo" in uids else "jaeger"
            _choose(variables[TRACES], kind, uids[kind])
            if kind == "tempo":
                _lead_to_tempo(board)
            if "loki" in uids:
                _add_logs(board, uids["loki"])
        found[file.stem] = board
    return found


def to_json(dashboard: Mapping[str, Any]) -> str:
    """Return the text of a dashboard's file."""
    return f"{json.dumps(dashboard, indent=2, sort_keys=True, ensure_ascii=False)}\n"


def print_files(files: Iterable[Path], folder: Path) -> None:
    """Print the files that are written into a folder.

    Raises:
        ConfigError: the folder is not writable.
    """
    try:
        for file in files:
            print(file)  # noqa: T201  (of command line tools)
    except OSError as error:
        culprit = error.filename or folder
        raise ConfigError(f"{culprit}: {error.strerror}; name a folder that may be written to") from error


def _choose(variable: dict[str, Any], kind: str, uid: str) -> None:
    """Let a variable offer the data sources of a kind, of which one is chosen."""
    variable |= {"query": kind, "current": {"selected": True, "text": uid, "value": uid}}


def _lead_to_tempo(value: Any) -> None:
    """Make searches in Tempo of all links to Jaeger."""
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            _lead_to_tempo(each)
    if isinstance(value, dict) and str(value.get("url", "")).startswith(EXPLORE):
        value["title"] = value["title"].replace("Jaeger", "Tempo")
        value["url"] = explore(TRACES, in_tempo(query_of(value["url"])["operation"]))


def _add_logs(board: dict[str, Any], uid: str) -> None:
    """Add a link to the logs of a trace, whose id is a variable: at first that of any trace."""
    source: dict[str, Any] = {"name": LOGS, "label": "Logs", "type": "datasource", "hide": 0, "skipUrlSync": False}
    _choose(source, "loki", uid)
    trace: dict[str, Any] = {"name": TRACE, "label": "Trace id", "type": "textbox", "hide": 0, "skipUrlSync": False}
    trace |= {"query": ANY, "current": {"selected": True, "text": ANY, "value": ANY}}
    board["templating"]["list"] += [source, trace]
    link: dict[str, Any] = {
        "title": "Logs in Loki",
        "type": "link",
        "icon": "doc",
        "url": explore(LOGS, in_loki()),
        "tags": [],
    }
    link |= {"tooltip": "", "asDropdown": False, "targetBlank": True, "includeVars": False, "keepTime": False}
    board["links"].append(link)
