"""The Grafana dashboards: their files, and what can be said of them without a server."""

from __future__ import annotations

import json
import re
from collections import Counter
from copy import deepcopy
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
import yaml
from grafana_foundation_sdk.models import units

from pellucid import semconv
from pellucid.cli import main
from pellucid.semconv.servers import ALL_METRICS
from pellucid_dashboards.dashboard_files import FOLDER, shipped_dashboards
from pellucid_dashboards.explore import in_loki, in_tempo
from pellucid_dashboards.grafana import dashboards, write_dashboards
from pellucid_dashboards.names import label, series
from pellucid_dashboards.promql import BUDGET_SPENT
from pellucid_dashboards.rules import Alert, all_groups
from pellucid_exporters.alerting.definition import Context
from support.dashboard_queries import Asked, everything, queries, real_panels, variable_queries
from support.grafana_types import VERSIONS, complaints
from support.processes import run_python
from support.promql import parse

if TYPE_CHECKING:
    from pathlib import Path

BOARDS = dashboards()
UIDS = sorted(BOARDS)
SHIPPED = {rule.name for group in all_groups(Context()) for rule in group.rules if isinstance(rule, Alert)}
ASKED = [each for uid in UIDS for each in queries(BOARDS[uid])]
INFRASTRUCTURE = {
    "ALERTS": {"alertname", "alertstate", "job", "severity", label(semconv.PROVIDER_ID)},
    BUDGET_SPENT: {"job", label(semconv.PROVIDER_ID)},
    "target_info": {"instance", "job", "service_name"},
}
"""Series that are Prometheus' own, of our rules, or OpenTelemetry's of a process, and their labels."""
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


def test_data_sources_are_variables() -> None:
    """Everything asks the metrics and links to the traces that are chosen: at first those that are provisioned."""
    for board in BOARDS.values():
        variables = [each for each in board["templating"]["list"] if each["type"] == "query"]
        asked = [*real_panels(board), *variables, *board["annotations"]["list"]]
        asked += [target for panel in real_panels(board) for target in panel["targets"]]
        assert {json.dumps(each["datasource"], sort_keys=True) for each in asked} == {
            '{"type": "prometheus", "uid": "${datasource}"}'
        }
        text = json.dumps(board)
        assert text.count("/explore?") == text.count("%22datasource%22%3A%22${traces}%22")
        chosen = [each for each in board["templating"]["list"] if each["type"] == "datasource"]
        assert {each["name"]: (each["query"], each["current"]["value"]) for each in chosen}.items() <= {
            "datasource": ("prometheus", "prometheus"),
            "traces": ("jaeger", "jaeger"),
        }.items()


@pytest.mark.parametrize("uid", UIDS)
def test_alerts_are_marked_on_all_dashboards(uid: str) -> None:
    """Each marks the time when alerts fired, of its own subject and of the services that are chosen."""
    [marks] = BOARDS[uid]["annotations"]["list"]
    matched = re.search(r'alertname=~"([^"]+)"', marks["target"]["expr"])
    assert matched
    assert any(re.fullmatch(matched[1], alert) for alert in SHIPPED)
    assert marks["enable"]


def test_a_fleet_of_hubs_opens_in_one_table() -> None:
    """Of the dashboard of hubs one panel is open: its state first, sorted by it; rows of hubs are closed."""
    table, *rows = BOARDS["pellucid-tool-hubs"]["panels"]
    assert table["type"] == "table"
    assert [(row["type"], row["collapsed"], row.get("repeat")) for row in rows] == [
        ("row", True, None),
        ("row", True, "provider"),
    ]
    places = table["transformations"][1]["options"]
    names = sorted(places["indexByName"], key=places["indexByName"].get)
    assert [places["renameByName"][name] for name in names][:5] == ["State", "Hub", "Alert", "Objective", "p95"]
    assert table["options"]["sortBy"][0] == {"displayName": "State", "desc": True}
    links = {
        rule["matcher"]["options"]: [
            each for found in rule["properties"] if found["id"] == "links" for each in found["value"]
        ]
        for rule in table["fieldConfig"]["overrides"]
    }
    [choice] = links["Hub"]
    assert choice["url"].startswith("/d/pellucid-tool-hubs?")
    assert choice["url"].endswith("&var-provider=${__value.raw}")


@pytest.mark.parametrize("uid", UIDS)
def test_panels_do_not_overlap(uid: str) -> None:
    """Each has an id of its own and a place within the 24 columns that no other has, in closed rows as well."""
    panels = BOARDS[uid]["panels"]
    inside = [panel["panels"] for panel in panels if panel.get("panels")]
    everywhere = [*panels, *(each for found in inside for each in found)]
    assert len({panel["id"] for panel in everywhere}) == len(everywhere)
    for found in (panels, *inside):
        taken: set[tuple[int, int]] = set()
        for panel in found:
            place = panel["gridPos"]
            assert 0 <= place["x"] < place["x"] + place["w"] <= 24
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert not cells & taken, panel["title"]
            taken |= cells
    for row in panels:
        assert all(each["gridPos"]["y"] > row["gridPos"]["y"] for each in row.get("panels", []))


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
    """TypeScript finds nothing wrong by `@grafana/schema` 11, 12 and 13, and finds in each what is made wrong."""
    wrong = deepcopy(BOARDS["pellucid-overview"])
    panels: list[Any] = real_panels(wrong)
    panels[0]["options"]["colourMode"] = "value"
    panels[1]["type"] = "timeserie"
    panels[2]["gridPos"]["x"] = "0"
    inside = deepcopy(BOARDS["pellucid-tool-hubs"])
    inside["panels"][1]["panels"][0]["options"]["rowHeigth"] = 1
    elsewhere = shipped_dashboards({"prometheus": "mimir", "tempo": "tempo", "loki": "loki"})
    boards = {**BOARDS, **{f"{uid}-elsewhere": board for uid, board in elsewhere.items()}}
    found = complaints(
        {**boards, "wrong": wrong, "wrong-inside": inside},
        {"tempo": in_tempo("chat"), "loki": in_loki()},
        tmp_path,
    )
    assert [line for line in found if "/wrong" not in line] == []
    for complaint in (
        "'\"colourMode\"' does not exist",
        '"timeserie"',
        "'string' is not assignable to type 'number'",
        "rowHeigth",
    ):
        for major in VERSIONS:
            assert any(complaint in line and line.startswith(f"{major}/wrong") for line in found), (major, complaint)


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


def exported(folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """Return the dashboards that the command writes as files of Grafana, by uid."""
    assert main(["dashboards", "export", str(folder), *options]) == 0
    return {file.stem: json.loads(file.read_text()) for file in folder.iterdir()}


def chosen(board: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Return kind and uid of the data sources that are chosen at first, by variable."""
    variables = [each for each in board["templating"]["list"] if each["type"] == "datasource"]
    assert all(each["current"]["text"] == each["current"]["value"] for each in variables)
    return {each["name"]: (each["query"], each["current"]["value"]) for each in variables}


def addresses(value: Any) -> list[str]:
    """Return all links to Explore, without the characters that addresses stand for by others."""
    return [unquote(found) for found in re.findall(r'"(/explore\?[^"]+)"', json.dumps(value))]


def test_export_knows_other_data_sources(tmp_path: Path) -> None:
    """Uids that are given are those that dashboards choose at first, and nothing else changes."""
    found = exported(tmp_path, "--prometheus-uid", "mimir", "--jaeger-uid", "my traces")
    assert chosen(found["pellucid-telemetry-health"]) == {"datasource": ("prometheus", "mimir")}
    for uid, board in found.items():
        assert {"datasource": ("prometheus", "mimir"), "traces": ("jaeger", "my traces")}.items() >= chosen(
            board
        ).items()
        for each, shipped in zip(board["templating"]["list"], BOARDS[uid]["templating"]["list"], strict=True):
            if each["type"] == "datasource":
                each["current"] = shipped["current"]
        assert board == BOARDS[uid]


def test_export_leads_to_tempo(tmp_path: Path) -> None:
    """With a uid of Tempo, links search there by TraceQL for the service and the name that Jaeger is asked for."""
    for uid, board in exported(tmp_path, "--tempo-uid", "tempo").items():
        before, after = addresses(BOARDS[uid]), addresses(board)
        assert len(after) == len(before)
        assert "Jaeger" not in json.dumps(board)
        assert chosen(board).get("traces", ("tempo", "tempo")) == ("tempo", "tempo")
        for old, new in zip(before, after, strict=True):
            was, query = (json.loads(each.partition("&panes=")[2])["traces"] for each in (old, new))
            assert query["datasource"] == was["datasource"] == "${traces}"
            assert query["queries"][0]["queryType"] == "traceql"
            name = was["queries"][0]["operation"]
            assert query["queries"][0]["query"] == f'{{resource.service.name="${{traced}}" && name="{name}"}}'


def test_export_leads_to_logs_of_a_trace(tmp_path: Path) -> None:
    """With a uid of Loki, dashboards with traces lead to the logs of a trace, whose id is a variable."""
    found = exported(tmp_path, "--loki-uid", "loki")
    with_traces = {uid for uid, board in BOARDS.items() if "traces" in everything(board)}
    assert len(with_traces) == 5
    for uid, board in found.items():
        links = [each for each in board["links"] if each["type"] == "link"]
        if uid not in with_traces:
            assert board == BOARDS[uid]
            continue
        [address] = addresses(links)
        pane = json.loads(address.partition("&panes=")[2])["logs"]
        assert pane["datasource"] == "${logs}"
        assert pane["queries"][0]["expr"] == '{service_name="${traced}"} | trace_id=~"${trace}"'
        assert chosen(board)["logs"] == ("loki", "loki")
        [trace] = [each for each in board["templating"]["list"] if each["name"] == "trace"]
        assert trace["type"] == "textbox"


def test_export_knows_one_data_source_of_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jaeger and Tempo at once are misuse."""
    with pytest.raises(SystemExit):
        main(["dashboards", "export", str(tmp_path), "--jaeger-uid", "traces", "--tempo-uid", "tempo"])
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize(("wanted", "kind"), [("configmap", "ConfigMap"), ("grafana-operator", "GrafanaDashboard")])
def test_export_writes_manifests(tmp_path: Path, wanted: str, kind: str) -> None:
    """They have the dashboards of the files, for Grafana's sidecar or its operator, with a kustomization."""
    assert main(["dashboards", "export", str(tmp_path), "--format", wanted, "--tempo-uid", "tempo"]) == 0
    objects = {file.name: yaml.safe_load(file.read_text()) for file in tmp_path.iterdir()}
    assert sorted(objects.pop("kustomization.yaml")["resources"]) == sorted(objects)
    assert {each["kind"] for each in objects.values()} == {kind}
    if kind == "ConfigMap":
        assert {each["metadata"]["labels"]["grafana_dashboard"] for each in objects.values()} == {"1"}
        texts = [text for each in objects.values() for text in each["data"].values()]
    else:
        assert all(each["spec"]["instanceSelector"] for each in objects.values())
        texts = [each["spec"]["json"] for each in objects.values()]
    assert {json.loads(text)["uid"]: json.loads(text) for text in texts} == shipped_dashboards(
        {"prometheus": "prometheus", "tempo": "tempo"}
    )


def test_export_says_what_is_in_the_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that cannot be is a message and the exit code of misuse."""
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "pellucid-tools.json").mkdir(parents=True)
    for folder, culprit in (("file", "file"), ("folder", "folder/pellucid-tools.json")):
        assert main(["dashboards", "export", str(tmp_path / folder)]) == 2
        told = capsys.readouterr().err
        assert f"pellucid: dashboards: {tmp_path / culprit}: " in told
        assert "name a folder that may be written to" in told
