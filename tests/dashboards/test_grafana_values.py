"""Values of the dashboards' queries on series that are made up, minute by minute."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import pellucid_dashboards
from pellucid_dashboards.grafana import dashboards
from support.dashboard_queries import everything, panel_queries, queries, real_panels, variable_queries
from support.promtool import STALE, Make, grow, late, level

if TYPE_CHECKING:
    pass

BOARDS = dashboards()
PUSHED_EVERY = 60
"""Seconds between two exports of metrics, by the conventions and by OpenTelemetry's SDK, unless somebody says more."""

SHOP = 'job="shop",instance="a:9464"'
STACK = 'job="stack",instance="otel-collector:8888"'
DISCOVERIES = "pellucid_tool_discovery_duration_seconds"


def expression(uid: str, panel: str, number: int = 0) -> str:
    """Return a query of a panel, over five minutes."""
    return panel_queries(BOARDS[uid])[panel][number].filled_in("5m")


def discoveries(provider: str, kind: str, *, cache: str = "miss", suffix: str = "_count") -> str:
    """Return the name of a series of discoveries."""
    labels = f'pellucid_provider_id="{provider}",pellucid_provider_kind="{kind}",pellucid_discovery_cache="{cache}"'
    return f"{DISCOVERIES}{suffix}{{{SHOP},{labels}}}"


def seconds(text: str) -> int:
    """Return a duration as Grafana writes it."""
    number, unit = re.fullmatch(r"(\d+)([sm])", text).groups()  # type: ignore[union-attr]
    return int(number) * {"s": 1, "m": 60}[unit]


@pytest.mark.parametrize("uid", sorted(BOARDS))
def test_rates_reach_over_several_exports(uid: str) -> None:
    """`$__rate_interval` holds three exports of an application that sends its metrics as often as the SDK does.

    Grafana makes it four times the query's own interval, or the data source's where the query has none.
    """
    files = f"{pellucid_dashboards.__path__[0]}/files/grafana/provisioning/datasources/pellucid.yml"
    with open(files, encoding="utf-8") as file:  # noqa: PTH123
        [source] = [each for each in yaml.safe_load(file)["datasources"] if each["type"] == "prometheus"]
    asked: list[dict[str, Any]] = [target for panel in real_panels(BOARDS[uid]) for target in panel["targets"]]
    rates = [target for target in asked if "$__rate_interval" in target["expr"]]
    assert rates
    for target in rates:
        interval = seconds(target.get("interval") or source["jsonData"]["timeInterval"])
        assert 4 * interval > 3 * PUSHED_EVERY, target["expr"]
    for panel in real_panels(BOARDS[uid]):
        assert len({target.get("interval") for target in panel["targets"]}) == 1, panel["title"]


def test_services_are_those_that_have_agents(trial: Make) -> None:
    """The dashboards offer, count and link to services that have agents, and no other process with a `target_info`."""
    tried = trial(
        {
            f'target_info{{{SHOP},service_name="shopping"}}': level((1, 10)),
            f'target_info{{{STACK},service_name="otelcol-contrib"}}': level((1, 10)),
            f"pellucid_compose_duration_seconds_count{{{SHOP}}}": grow((1, 10)),
        }
    )
    [service, _, traced] = variable_queries(BOARDS["pellucid-overview"])
    assert service.label == "job"
    tried.value(8, f"group by (job) ({service.filled_in()})", ({"job": "shop"}, 1))
    tried.value(8, traced.filled_in(), ({"service_name": "shopping"}, 1))
    tried.value(8, expression("pellucid-telemetry-health", "Processes that report"), ({"job": "shop"}, 1))
    tried.run()


def test_services_include_those_of_other_frameworks(trial: Make) -> None:
    """A service whose agents are another framework's is offered and traced, as it lists tools and composes nothing."""
    tried = trial(
        {
            'target_info{job="desk",instance="b",service_name="helpdesk"}': level((1, 10)),
            f'{DISCOVERIES}_count{{job="desk",instance="b",pellucid_provider_id="docs"}}': grow((1, 10)),
        }
    )
    [service, _, traced] = variable_queries(BOARDS["pellucid-overview"])
    tried.value(8, f"group by (job) ({service.filled_in()})", ({"job": "desk"}, 1))
    tried.value(8, traced.filled_in(), ({"service_name": "helpdesk"}, 1))
    tried.value(8, expression("pellucid-telemetry-health", "Processes that report"), ({"job": "desk"}, 1))
    tried.run()


def test_a_service_that_pushes_is_traced_beside_others_that_are_scraped(trial: Make) -> None:
    """A pushing service has its name in `job` only; it is found although another process says `service_name`."""
    tried = trial(
        {
            'target_info{job="team/shop",instance="1"}': level((1, 10)),
            f'target_info{{{STACK},service_name="otelcol-contrib"}}': level((1, 10)),
            'pellucid_compose_duration_seconds_count{job="team/shop",instance="1"}': grow((1, 10)),
        }
    )
    traced = variable_queries(BOARDS["pellucid-overview"])[-1]
    tried.value(8, traced.filled_in(), ({"service_name": "shop"}, 1))
    tried.run()


def test_alerts_are_those_of_the_services_that_are_chosen() -> None:
    """Each dashboard asks for alerts by service, in panels and in annotations."""
    asked = [each for board in BOARDS.values() for each in queries(board) if "ALERTS{" in each.expr]
    assert len(asked) > 4
    for each in asked:
        assert each.expr.count("ALERTS{") == len(re.findall(r'ALERTS{[^}]*job=~"\$service"', each.expr)), each


def test_time_of_discovery_is_counted_once(trial: Make) -> None:
    """The time of a combined provider is that of its parts, also behind a gate, and is not added to theirs."""
    tried = trial(
        {
            discoveries("docs", "hub", suffix="_sum"): grow((30, 10)),
            discoveries("gated(other)", "gated", suffix="_sum"): grow((12, 10)),
            discoveries("combined(docs,gated(other))", "combined", cache="none", suffix="_sum"): grow((42, 10)),
            discoveries("gated(combined(docs,gated(other)))", "gated", cache="none", suffix="_sum"): grow((42, 10)),
        }
    )
    tried.value(8, expression("pellucid-runs-and-models", "Time by phase"), ({}, 0.7))
    tried.run()


def test_a_hub_behind_a_gate_is_a_hub(trial: Make) -> None:
    """A gate before a hub counts as a hub, and a gate before tools of the process's own does not."""
    local = ["gated(static)", "gated(skill-scoped:billing)", "gated(gated(static))", "gated(combined(docs,other))"]
    tried = trial(
        {
            discoveries("gated(docs)", "gated"): grow((60, 10)),
            **{discoveries(provider, "gated", cache="none"): grow((60, 10)) for provider in local},
        }
    )
    board = BOARDS["pellucid-tool-hubs"]
    chosen = next(each for each in variable_queries(board) if each.label == "pellucid_provider_id")
    tried.value(
        8, f"group by (pellucid_provider_id) ({chosen.filled_in()})", ({"pellucid_provider_id": "gated(docs)"}, 1)
    )
    everyone = everything(board)["provider"]
    came = expression("pellucid-tool-hubs", "Where catalogues came from").replace(everyone, ".*")
    tried.value(8, came, ({"pellucid_discovery_cache": "miss"}, 60))
    tried.run()


def test_the_first_failure_of_a_process_is_seen(trial: Make) -> None:
    """The first failure of a running process is counted; totals of a process that was not seen before are not."""
    runs = f'gen_ai_invoke_agent_duration_seconds_count{{{SHOP},gen_ai_agent_name="support"'
    tried = trial(
        {
            f"target_info{{{SHOP}}}": level((1, 61)),
            f"{runs}}}": grow((1, 60)),
            f'{runs},error_type="timeout"}}': late(20, level((6, 41))),
            'target_info{job="back",instance="b"}': late(50, level((1, 11))),
            'pellucid_telemetry_dropped_total{job="back",instance="b"}': late(50, level((1000, 11))),
            f"pellucid_telemetry_dropped_total{{{SHOP}}}": late(52, level((3, 9))),
        }
    )
    whole = panel_queries(BOARDS["pellucid-overview"])["Agents"][1].filled_in("30m")
    tried.value(40, f"round({whole}, 0.001)", ({"gen_ai_agent_name": "support"}, 0.167))
    lately = panel_queries(BOARDS["pellucid-overview"])["Runs by outcome"][1].filled_in("4m")
    tried.value(22, lately, ({"error_type": "timeout"}, 1.5))
    lost = panel_queries(BOARDS["pellucid-telemetry-health"])["Lost"][0].filled_in("4m")
    tried.value(53, lost, ({}, 0.75))
    tried.run()


def test_histograms_that_change_their_kind_are_not_new(trial: Make) -> None:
    """A histogram whose kind changes is not new: what a process measured before the change does not count as recent.

    To promtool a native histogram is a number here: what matters is that it was there.
    """
    runs = f'{{{SHOP},gen_ai_agent_name="support",error_type="timeout"}}'
    tried = trial(
        {
            f"target_info{{{SHOP}}}": level((1, 31)),
            f"gen_ai_invoke_agent_duration_seconds{runs}": [*level((1, 20)), STALE],
            f"gen_ai_invoke_agent_duration_seconds_count{runs}": late(20, level((1000, 11))),
        }
    )
    asked = expression("pellucid-overview", "Runs by outcome", 1)
    tried.value(22, asked, ({"error_type": "timeout"}, 0))
    tried.run()
    for kind in ("", "_count"):  # either of them, of either
        assert len(re.findall(rf"unless gen_ai_invoke_agent_duration_seconds{kind}{{[^}}]*}} offset 5m", asked)) == 2


def test_a_run_that_a_policy_halts_is_not_failed(trial: Make) -> None:
    """A run that a policy halts is not shown as failed: the alert on runs does not count it either."""
    runs = f'gen_ai_invoke_agent_duration_seconds_count{{{SHOP},gen_ai_agent_name="support"'
    tried = trial(
        {
            f"{runs}}}": grow((50, 10)),
            f'{runs},error_type="policy_halt"}}': grow((40, 10)),
            f'{runs},error_type="timeout"}}': grow((10, 10)),
        }
    )
    for panel, labels in (("What is wrong now", {}), ("Agents", {"gen_ai_agent_name": "support"})):
        tried.value(8, f"round({expression('pellucid-overview', panel, 1)}, 1e-9)", (labels, 0.1))
    tried.run()


def test_a_hub_has_one_state(trial: Make) -> None:
    """A hub has the state and the name of the worst alert of any service; a hub without an alert is ok."""
    firing = 'severity="page",alertstate="firing"'
    pending = 'alertname="ToolHubSlow",alertstate="pending"'
    known = {
        f'pellucid_hub_unanswered_age_seconds{{{SHOP},pellucid_provider_id="{hub}"}}': level((0, 10))
        for hub in ("docs", "slow", "well")
    }
    tried = trial(
        {
            **known,
            f'ALERTS{{alertname="ToolHubDown",job="shop",pellucid_provider_id="docs",{firing}}}': level((1, 10)),
            f'ALERTS{{job="shop",pellucid_provider_id="docs",{pending}}}': level((1, 10)),
            f'ALERTS{{job="back",pellucid_provider_id="slow",{pending}}}': level((1, 10)),
        }
    )
    values = everything(BOARDS["pellucid-tool-hubs"])
    state = expression("pellucid-tool-hubs", "Hubs").replace(values["provider"], ".*")
    tried.value(
        8,
        state,
        ({"pellucid_provider_id": "docs", "alertname": "ToolHubDown"}, 2),
        ({"pellucid_provider_id": "slow", "alertname": "ToolHubSlow"}, 1),
        ({"pellucid_provider_id": "well"}, 0),
    )
    tried.run()
