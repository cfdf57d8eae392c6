"""The Grafana dashboards: their files, and what can be said of them without a server."""

from __future__ import annotations

import json
import re
from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
from grafana_foundation_sdk.models import units

from pellucid import semconv
from pellucid.cli import main
from pellucid.semconv.servers import ALL_METRICS
from pellucid_dashboards.dashboard_files import FOLDER
from pellucid_dashboards.grafana import dashboards, write_dashboards
from pellucid_dashboards.names import label, series
from support.dashboard_queries import Asked, everything, queries, real_panels, variable_queries
from support.grafana_types import complaints
from support.processes import run_python
from support.promql import parse

if TYPE_CHECKING:
    from pathlib import Path

BOARDS = dashboards()
UIDS = sorted(BOARDS)
ASKED = [each for uid in UIDS for each in queries(BOARDS[uid])]
INFRASTRUCTURE = {
    "ALERTS": {"alertname", "alertstate", "job", "severity", label(semconv.PROVIDER_ID)},
    "target_info": {"instance", "job", "service_name"},
}
"""Series that are Prometheus' own, or OpenTelemetry's of a process, and their labels."""
SUFFIXES = {"histogram": ("", "_bucket", "_count", "_sum"), "counter": ("",), "gauge": ("",), "updown": ("",)}
UNITS = {value for name, value in vars(units).items() if isinstance(value, str) and not name.startswith("_")}
LABELS = {
    **INFRASTRUCTURE,
    **{
        series(metric, suffix): {"job", "instance", *map(label, metric.attributes)}
        | ({"le"} if suffix == "_bucket" else set())
        for metric in ALL_METRICS
        for suffix in SUFFIXES[metric.kind]
    },
}
"""Labels of every series that there is."""


def unknown(expression: str) -> list[str]:
    """Return names in a query that no metric has, and labels that its metric does not have."""
    selectors, grouped = parse(expression)
    wrong = []
    for selector in selectors:
        if selector.name not in LABELS:
            wrong.append(selector.name)
        wrong += sorted(selector.labels - LABELS.get(selector.name, set()))
    anywhere = {name for selector in selectors for name in LABELS.get(selector.name, ())}
    return wrong + sorted(grouped - anywhere)


def test_the_files_are_what_the_code_makes(tmp_path: Path) -> None:
    """`make dashboards` would change nothing, and a dashboard that is no more leaves no file."""
    (tmp_path / "old.json").write_text("{}")
    write_dashboards(tmp_path)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert made == {file.name: file.read_text() for file in FOLDER.iterdir()}
    assert sorted(made) == [f"{uid}.json" for uid in UIDS]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_names_are_those_of_the_conventions(asked: Asked) -> None:
    """Each series of a query is one that is emitted, with labels that it has; legends use labels that are left."""
    assert unknown(asked.filled_in()) == []
    in_legend = set(re.findall(r"{{(\w+)}}", asked.legend))
    assert in_legend <= parse(asked.expr)[1]


@pytest.mark.parametrize(
    "expression",
    [
        "rate(pellucid_tool_discvery_duration_seconds_count[5m])",
        'target_info{service_nam!=""}',
        "sum by (gen_ai_tool_nme) (rate(gen_ai_execute_tool_duration_seconds[5m]))",
        'rate(gen_ai_execute_tool_duration_seconds_bucket{pellucid_discovery_cache="hit"}[5m])',
    ],
)
def test_a_misspelt_name_is_found(expression: str) -> None:
    """The test before is no formality."""
    assert unknown(expression)


@pytest.mark.parametrize("uid", UIDS)
def test_variables_ask_for_labels_that_there_are(uid: str) -> None:
    """The values of a variable are those of a label that its metric has."""
    for asked in variable_queries(BOARDS[uid]):
        if asked.label:
            [selector] = parse(asked.expr)[0]
            wanted = [selector.name] if selector.name else re.findall(r"(\w+)\(_count\)\?", selector.matchers[0])
            assert wanted
            for name in wanted:
                assert {asked.label, *selector.labels} - {"__name__"} <= LABELS[name]
        else:
            assert unknown(asked.expr) == []


@pytest.mark.parametrize("uid", UIDS)
def test_variables_are_defined_and_used(uid: str) -> None:
    """No query or link uses a variable that is not there, and no variable is there for nothing."""
    board = BOARDS[uid]
    defined = [variable["name"] for variable in board["templating"]["list"]]
    bodies = {variable["name"]: json.dumps(variable["query"]) for variable in board["templating"]["list"]}
    parts = {key: value for key, value in board.items() if key != "templating"}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(parts) + "".join(bodies.values())))
    assert len(defined) == len(set(defined))
    assert used == set(defined)
    assert everything(BOARDS[uid]).keys() == used


@pytest.mark.parametrize("uid", UIDS)
def test_panels_say_what_they_answer(uid: str) -> None:
    """Each panel has a title, asks a question, and has a unit that Grafana knows, a data source and queries."""
    for panel in real_panels(BOARDS[uid]):
        assert panel["title"]
        assert "?" in panel["description"], panel["title"]
        overrides = [each for rule in panel["fieldConfig"]["overrides"] for each in rule["properties"]]
        shown = [each["value"] for each in overrides if each["id"] == "unit"]
        assert {panel["fieldConfig"]["defaults"]["unit"], *shown} <= UNITS
        assert panel["targets"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs))
    titles = Counter(panel["title"] for panel in real_panels(BOARDS[uid]))
    assert max(titles.values()) == 1


def test_data_sources_are_the_two_that_are_provisioned() -> None:
    """Panels, queries, variables and annotations ask `prometheus`, links to traces `jaeger`."""
    for board in BOARDS.values():
        asked = [*real_panels(board), *board["templating"]["list"], *board["annotations"]["list"]]
        asked += [target for panel in real_panels(board) for target in panel["targets"]]
        assert {json.dumps(each["datasource"], sort_keys=True) for each in asked} == {
            '{"type": "prometheus", "uid": "prometheus"}'
        }
        text = json.dumps(board)
        assert text.count("/explore?") == text.count("%22datasource%22%3A%22jaeger%22")


@pytest.mark.parametrize("uid", UIDS)
def test_panels_do_not_overlap(uid: str) -> None:
    """Each has an id of its own and a place within the 24 columns that no other has."""
    panels = BOARDS[uid]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_tables_and_percentiles_lead_to_traces() -> None:
    """Each table has links to Jaeger, and each panel of percentiles or heat map shows exemplars."""
    for board in BOARDS.values():
        for panel in real_panels(board):
            if panel["type"] == "table":
                assert "/explore?" in json.dumps(panel["fieldConfig"]["overrides"]), panel["title"]
            elif panel["type"] != "stat" and any("_bucket" in target["expr"] for target in panel["targets"]):
                assert any(target["exemplar"] for target in panel["targets"]), panel["title"]


def test_links_between_dashboards_lead_somewhere() -> None:
    """Every link to another dashboard names one that there is."""
    linked = {uid for board in BOARDS.values() for uid in re.findall(r'"/d/([\w-]+)\?', json.dumps(board))}
    assert linked
    assert linked <= set(UIDS)


@pytest.mark.integration
def test_grafanas_own_types_accept_the_dashboards(tmp_path: Path) -> None:
    """TypeScript finds nothing wrong by `@grafana/schema`, and finds an option, a kind and a place that are."""
    wrong = deepcopy(BOARDS["pellucid-overview"])
    panels: list[Any] = real_panels(wrong)
    panels[0]["options"]["colourMode"] = "value"
    panels[1]["type"] = "timeserie"
    panels[2]["gridPos"]["x"] = "0"
    found = complaints({**BOARDS, "wrong": wrong}, tmp_path)
    assert [line for line in found if not line.startswith("wrong.ts")] == []
    for complaint in ("'\"colourMode\"' does not exist", '"timeserie"', "'string' is not assignable to type 'number'"):
        assert any(complaint in line for line in found), found


def test_export_writes_the_dashboards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`pellucid dashboards export` writes the files that are shipped, into a folder that it makes."""
    folder = tmp_path / "new" / "folder"
    assert main(["dashboards", "export", str(folder)]) == 0
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        file.name: file.read_text() for file in FOLDER.iterdir()
    }
    assert capsys.readouterr().out.splitlines() == [str(folder / f"{uid}.json") for uid in UIDS]


def test_export_needs_nothing_but_the_files(tmp_path: Path) -> None:
    """It works where the builders, which are for development, are not installed."""
    script = """
        import sys
        sys.modules["grafana_foundation_sdk"] = sys.modules["yaml"] = None
        from pellucid.cli import main
        assert main(["dashboards", "export", sys.argv[1]]) == 0
    """
    assert len(run_python(script, tmp_path).stdout.splitlines()) == len(UIDS)


def test_export_knows_other_data_sources(tmp_path: Path) -> None:
    """With other uids nothing refers to the shipped ones any more."""
    assert main(["dashboards", "export", str(tmp_path), "--prometheus-uid", "mimir", "--jaeger-uid", "my traces"]) == 0
    for file in tmp_path.iterdir():
        text = file.read_text()
        assert '"uid": "mimir"' in text
        assert '"uid": "prometheus"' not in text
        assert "%22jaeger%22" not in text
    assert "%22my%20traces%22" in (tmp_path / "pellucid-tools.json").read_text()


def test_export_says_what_is_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that cannot be is a message and the exit code of misuse."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "pellucid-tools.json").mkdir(parents=True)
    for folder, culprit in (("file", "file"), ("folder", "folder/pellucid-tools.json")):
        assert main(["dashboards", "export", str(tmp_path / folder)]) == 2
        told = capsys.readouterr().err
        assert f"pellucid: dashboards: {tmp_path / culprit}: " in told
        assert "name a folder that may be written to" in told
