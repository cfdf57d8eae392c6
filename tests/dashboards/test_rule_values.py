"""Values that recording rules compute, and the exact texts of alerts."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import quote_plus

import pytest

from pellucid_dashboards.rules import Alert, all_groups
from pellucid_exporters.alerting.definition import Context
from support.promtool import ANSWERED, DURATION, HERE, HUB, RUBE, STALE, WAITS, Make, grow, late, level

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pytestmark = pytest.mark.prometheus


MODEL = 'gen_ai_provider_name="acme",gen_ai_request_model="gpt"'
MODEL_LABELS = {"job": "shop", "gen_ai_provider_name": "acme", "gen_ai_request_model": "gpt"}
BUDGET = 'pellucid_budget_name="tenant-7",pellucid_budget_kind="cost"'
COST = "pellucid:cost_usd:increase1h"


ALERTS: dict[tuple[str, str], Alert] = {
    (rule.name, rule.severity): rule
    for group in all_groups(Context())
    for rule in group.rules
    if isinstance(rule, Alert) and rule.labels.get("burn") not in ("steady", "streak")
}
STEADY, STREAK = (
    next(
        rule
        for group in all_groups(Context())
        for rule in group.rules
        if isinstance(rule, Alert) and rule.labels.get("burn") == burn
    )
    for burn in ("steady", "streak")
)
"""The further tickets of `ToolHubSlow`."""

UNDECLARED = {"hub_address": "", "hub_runbook_url": ""}
"""Annotations of alerts on a hub about which nothing is declared."""


def fixed(alert: Alert) -> dict[str, str]:
    """Return the labels that an alert always has."""
    owner = {"owner": "unassigned"} if "owner" in alert.labels else {}
    return {"severity": alert.severity, **alert.labels, **owner}


def description(alert: Alert) -> str:
    """Return the description of an alert on a hub that declares nothing."""
    return re.sub(r"\{\{ with .*?\{\{ else \}\}(.*?)\{\{ end \}\}", r"\1", alert.description)


def histogram(labels: str, **bounds: Sequence[float | None]) -> dict[str, Sequence[float | None]]:
    """Return a classic histogram whose buckets are named by their bounds; the last is all."""
    found = {f'{DURATION}_bucket{{{labels},le="{bound}"}}': values for bound, values in bounds.items()}
    return {**found, f"{DURATION}_count{{{labels}}}": list(bounds.values())[-1]}


def slow(each: float, over: float, labels: str = ANSWERED) -> dict[str, Sequence[float | None]]:
    """Return requests by the minute, of which some are over the objective."""
    counter = f"pellucid_hub_over_objective_total{{{labels}}}"
    return {f"{DURATION}_count{{{labels}}}": grow((each, 90)), counter: grow((over, 90))}


def test_p95(trial: Make) -> None:
    """The recorded p95 of discovery durations is the value interpolated within its bucket."""
    counts = {"0.1": 60, "0.2": 90, "0.5": 99, "1.0": 100, "+Inf": 100}
    found = trial(histogram(ANSWERED, **{bound: grow((count, 20)) for bound, count in counts.items()}))
    expression = "round(pellucid:discovery_duration_seconds:p95_5m, 1e-6)"
    found.value(15, expression, (HUB, round(0.2 + 0.3 * 5 / 9, 6)))
    found.run()


def test_quantiles_of_no_traffic(trial: Make) -> None:
    """The p95 and the error ratio have no value without traffic, rather than NaN."""
    found = trial(histogram(ANSWERED, **{"0.1": level((7, 20)), "+Inf": level((9, 20))}))
    found.value(15, "pellucid:discovery_duration_seconds:p95_5m")
    found.value(15, "pellucid:discovery_errors:ratio_rate5m")
    found.run()


def test_error_ratio(trial: Make) -> None:
    """The error ratio is the share of failures and timeouts in all requests, and 0 where nothing ever failed."""
    name = f'{DURATION}_count{{{RUBE},pellucid_provider_kind="hub"'
    found = trial(
        {
            f'{name},pellucid_outcome="completed"}}': grow((6, 20)),
            f'{name},pellucid_outcome="failed",error_type="500"}}': grow((1, 20)),
            f'{name},pellucid_outcome="timeout",error_type="timeout"}}': grow((1, 20)),
            f'{name},pellucid_outcome="abandoned"}}': grow((2, 20)),
            f'{name},pellucid_outcome="completed"}}'.replace("rube", "git"): grow((1, 20)),
        }
    )
    git = {"job": "shop", "pellucid_provider_id": "git"}
    found.value(15, "pellucid:discovery_errors:ratio_rate5m", (HUB, 0.2), (git, 0.0))
    found.run()


def test_over_objective(trial: Make) -> None:
    """The recorded ratio is the share of requests that were counted as over the objective."""
    found = trial(slow(60, 15))
    for window in ("5m", "30m", "1h", "6h"):
        expression = f"round(pellucid:discovery_over_objective:ratio_rate{window}, 1e-6)"
        found.value(85, expression, (HUB, 0.25))
    found.value(85, "round(pellucid:discovery_round_trips:increase1h)", (HUB, 3600))
    found.run()


def test_long_windows_slide_with_the_minute(trial: Make) -> None:
    """A long window counts each request once, from its minute until the window has passed."""
    found = trial(slow_burst())
    counts = {
        "30m": ((17, 420), (39, 600), (49, 60), (51, 0)),
        "1h": ((17, 420), (63, 600), (75, 300), (77, 180), (81, 0)),
        "6h": ((51, 600), (376, 240), (381, 0)),
        "1d": ((51, 600), (1456, 240), (1461, 0)),
    }
    for window, times in counts.items():
        for minute, requests in times:
            found.value(minute, f"round(pellucid:discovery_round_trips:increase{window})", (HUB, requests))
        late_share = f"round(pellucid:discovery_over_objective:ratio_rate{window}, 1e-6)"
        found.value(29, late_share, (HUB, 0.25))
    found.run()


def slow_burst() -> dict[str, Sequence[float | None]]:
    """Return 60 requests a minute from minute 10 to 20, a quarter of them late, and none after."""
    counter = f"pellucid_hub_over_objective_total{{{ANSWERED}}}"
    requests, late_ones = grow((0, 10), (60, 10), (0, 1450)), grow((0, 10), (15, 10), (0, 1450))
    return {f"{DURATION}_count{{{ANSWERED}}}": requests, counter: late_ones}


def test_a_window_outlives_the_processes_that_it_counted(trial: Make) -> None:
    """A window keeps the requests of a process that ended half an hour ago, and adds those of a new one."""
    ended = {name: [*values[:30], STALE] for name, values in slow(60, 60).items()}
    begun = {name.replace("a:9464", "b:9464"): late(40, values) for name, values in slow(60, 0).items()}
    found = trial({**ended, **begun, 'up{job="shop",instance="b:9464"}': level((1, 130))})
    found.value(55, "round(pellucid:discovery_round_trips:increase1h)", (HUB, 30 * 60 + 15 * 60))
    found.run()


def test_increases_count_from_nothing(trial: Make) -> None:
    """An increase counts a new series from 0, and a series after a restart from 0, too."""
    found = trial(
        {f'pellucid_cost_total{{{HERE},gen_ai_request_model="gpt"}}': [*late(70, level((3, 70))), *level((1, 10))]}
    )
    labels = {"job": "shop", "gen_ai_request_model": "gpt"}
    found.value(69, COST)
    found.value(70, COST, (labels, 3))
    found.value(120, COST, (labels, 3))
    found.value(135, COST, (labels, 0))
    found.value(145, f"round({COST})", (labels, 1))
    found.run()


def test_one_failed_scrape_is_no_new_series(trial: Make) -> None:
    """A series that ends with a failed scrape, and is there again with the next one, has not grown from nothing."""
    cost, up = grow((1, 140), start=1000), level((1, 141))
    cost[70], up[70] = STALE, 0
    found = trial({f'pellucid_cost_total{{{HERE},gen_ai_request_model="gpt"}}': cost, f"up{{{HERE}}}": up})
    labels = {"job": "shop", "gen_ai_request_model": "gpt"}
    for minute in (129, 130, 131, 132):
        found.value(minute, f"round({COST}, 10)", (labels, 60))
    found.run()


def test_tokens_are_those_of_both_kinds(trial: Make) -> None:
    """The recorded tokens are input and output of all series of a model."""
    name = f"gen_ai_client_token_usage_sum{{{HERE},{MODEL},gen_ai_token_type="
    found = trial({f'{name}"input"}}': grow((90, 70)), f'{name}"output"}}': grow((10, 70))})
    found.value(65, "round(pellucid:tokens:increase1h)", (MODEL_LABELS, 6000))
    found.run()


def gauge(name: str, value: float, labels: str = RUBE) -> dict[str, Sequence[float | None]]:
    """Return a gauge that stays as it is."""
    return {f"pellucid_{name}{{{labels}}}": level((value, 91))}


def calls(metric: str, labels: str, each: float = 5, count: int = 90) -> dict[str, Sequence[float | None]]:
    """Return calls of which half fail with a timeout."""
    return {
        f"{metric}_count{{{HERE},{labels}}}": grow((each, count)),
        f'{metric}_count{{{HERE},{labels},error_type="timeout"}}': grow((each, count)),
    }


SLOW = {**histogram(ANSWERED, **{"0.2": grow((15, 90)), "1.0": grow((60, 90)), "+Inf": grow((60, 90))}), **slow(60, 45)}
OBJECTIVE = gauge("tool_discovery_objective_seconds", 0.2)
ASKED = 'pellucid_provider_id="rube",pellucid_provider_kind="hub",pellucid_outcome="%s"'
MISSES = 'pellucid_provider_id="rube",pellucid_provider_kind="hub",pellucid_discovery_cache="miss"'
SLOW_MODEL = {
    f'gen_ai_client_operation_duration_seconds_bucket{{{HERE},{MODEL},le="40.96"}}': grow((0, 90)),
    f'gen_ai_client_operation_duration_seconds_bucket{{{HERE},{MODEL},le="81.92"}}': grow((6, 90)),
    f'gen_ai_client_operation_duration_seconds_bucket{{{HERE},{MODEL},le="+Inf"}}': grow((6, 90)),
    f"gen_ai_client_operation_duration_seconds_count{{{HERE},{MODEL}}}": grow((6, 90)),
}
TOKENS = {f"gen_ai_client_token_usage_sum{{{HERE},{MODEL}}}": grow((200_000, 90))}

OURS = 'job="stack",instance="c:8888"'
STACK = {"job": "stack", "instance": "c:8888"}
SENDING = f'{OURS},exporter="otlp_grpc/jaeger",data_type="traces"'
STOCK = 'pellucid_mcp_server_name="tools",mcp_method_name="tools/call",gen_ai_tool_name="stock"'
SERVER = {f'pellucid_mcp_server_objective_seconds{{{HERE},pellucid_mcp_server_name="tools"}}': level((0.2, 91))}
SCORER = 'gen_ai_evaluation_name="polite"'
SAID = [
    ("ToolHubSlow", "page", {**SLOW, **OBJECTIVE}, HUB,
     ("Tool hub rube (shop) is slow: 75% of the requests to it in 5m took longer than its objective of 200ms; "
      "p95 is 946.7ms.")),
    ("ToolHubSlow", "ticket", {**SLOW, **OBJECTIVE}, HUB,
     ("Tool hub rube (shop) is slow: 75% of the requests to it in 30m took longer than its objective of 200ms; "
      "p95 is 946.7ms.")),
    ("ToolHubSilent", "page",
     {**gauge("hub_unanswered_age_seconds", 95), **gauge("tool_discovery_inflight", 1), **OBJECTIVE,
      f'{DURATION}_count{{{HERE},{ASKED % "abandoned"}}}': grow((7, 90))}, HUB,
     ("Tool hub rube (shop) is silent: it has not answered since 01:23 UTC, for 1m 35s; requests without an answer: "
      "421; its objective is 200ms.")),
    ("ToolHubFailing", "page",
     {f"{DURATION}_count{{{HERE},{ASKED % outcome}}}": grow((5, 90)) for outcome in ("completed", "failed")}, HUB,
     "Tool hub rube (shop) fails: 50% of the requests to it in 5m; the limit is 10%."),
    ("ToolHubDown", "page",
     {f'{DURATION}_count{{{HERE},{ASKED % "failed"}}}': grow((2, 90)),
      **gauge("tool_discovery_last_success_seconds", 0), **OBJECTIVE}, HUB,
     ("Tool hub rube (shop) is down: 20 requests to it in 10m failed; its last success was 1h 25m 0s ago; the limit is "
      "10 min, its latency objective 200ms.")),
    ("ToolHubCircuitOpen", "ticket", {**gauge("circuit_state_ratio", 2), **OBJECTIVE}, HUB,
     ("Tool hub rube (shop) is not called: its circuit breaker is open (state 2, 0 is closed); the hub's latency "
      "objective is 200ms.")),
    ("ToolCatalogChanging", "ticket", {f"pellucid_tool_catalog_changes_total{{{RUBE}}}": grow((0.5, 90))}, HUB,
     "Tool hub rube (shop) changes what it lists: 30 times in 1h; the limit is 3."),
    ("ToolDefinitionsChanged", "ticket",
     {f'pellucid_tool_definition_changes_total{{{RUBE},pellucid_tool_change="{change}"}}': grow((0.5, 90))
      for change in ("changed", "new")}, HUB,
     ("Tool hub rube (shop) lists tools that differ from the lock file: runs met 60 in 1h; each tool counts once in a "
      "run.")),
    ("DiscoveryCacheMissStorm", "ticket",
     {f"{WAITS}_count{{{HERE},{MISSES}}}": grow((60, 90)), **gauge("tool_discovery_ttl_seconds", 60), **OBJECTIVE,
      **histogram(ANSWERED, **{"0.1": grow((0, 90)), "0.2": grow((60, 90)), "+Inf": grow((60, 90))})}, HUB,
     ("Tool hub rube (shop) is asked too often: 100% of the lookups in its cache missed in 10m; the limit is 50%, its "
      "latency objective 200ms.")),
    ("ToolFailing", "ticket", calls("gen_ai_execute_tool_duration_seconds", 'gen_ai_tool_name="search"'),
     {"job": "shop", "gen_ai_tool_name": "search"},
     "Tool search (shop) fails: 50% of its calls in 10m; the limit is 20%."),
    ("ScorerFailing", "ticket",
     {f"pellucid_evaluation_results_total{{{HERE},{SCORER}{error}}}": grow((each, 90))
      for error, each in (("", 1), (',error_type="timeout"', 3), (',error_type="LookupError"', 1))},
     {"job": "shop", "gen_ai_evaluation_name": "polite"},
     ("Scorer polite (shop) fails: 80% of its scores in 1h, about 240, have no judgement, mostly timeout; the limit is "
      "50%.")),
    ("ModelSlow", "ticket", SLOW_MODEL, MODEL_LABELS,
     "Model gpt (shop) is slow: p95 of its calls in 10m is 1m 19s; the limit is 30 s."),
    ("ModelFailing", "page", calls("gen_ai_client_operation_duration_seconds", MODEL), MODEL_LABELS,
     "Model gpt (shop) fails: 50% of its calls in 10m; the limit is 10%."),
    ("RunFailing", "page", calls("gen_ai_invoke_agent_duration_seconds", 'gen_ai_agent_name="support"'),
     {"job": "shop", "gen_ai_agent_name": "support"},
     "Agent support (shop) fails: 50% of its runs in 10m; the limit is 10%."),
    ("TokenBurn", "ticket", TOKENS, MODEL_LABELS, "Model gpt (shop) used 12M tokens in 1h; the limit is 10,000,000."),
    ("CostBurn", "page", {f"pellucid_cost_total{{{HERE},{MODEL}}}": grow((1, 90))}, MODEL_LABELS,
     "Model gpt (shop) cost 60.00 US dollars in 1h; the limit is 50.00."),
    ("BudgetNearlySpent", "ticket",
     {**gauge("budget_spent", 17, f"{HERE},{BUDGET}"), **gauge("budget_limit", 20, f"{HERE},{BUDGET}")},
     {"job": "shop", "pellucid_budget_name": "tenant-7", "pellucid_budget_kind": "cost"},
     ("Budget tenant-7 (shop) is nearly spent: 85% of its cost in its period; the limit of this alert is 80%.")),
    ("ApprovalsWaiting", "ticket", gauge("approval_pending", 2, f'{HERE},gen_ai_tool_name="pay"'),
     {"job": "shop", "gen_ai_tool_name": "pay"},
     ("Tool pay (shop): 2 calls wait for approval, without a decision for 15 min, or they are "
      "20 and more.")),
    ("ExternalToolStuck", "ticket",
     gauge("durable_pending_age_seconds", 3900, f'{HERE},gen_ai_tool_name="survey",pellucid_durable_kind="external"'),
     {"job": "shop", "gen_ai_tool_name": "survey"},
     ("Tool survey (shop) has owed the result of an external call for 1h 5m 0s; the limit is 50% of the time until its "
      "deadline, or 1 h without one.")),
    ("ExternalToolFailing", "ticket",
     {f'pellucid_external_wait_seconds_count{{{HERE},gen_ai_tool_name="survey",pellucid_async_tool_status="{status}"}}':
      grow((1, 90)) for status in ("completed", "expired", "failed", "cancelled")},
     {"job": "shop", "gen_ai_tool_name": "survey"},
     ("Tool survey (shop): 50% of the results of its asynchronous calls in 30m are failures, or did not arrive before "
      "the deadline; the limit is 20%.")),
    ("ExternalResultsRejected", "ticket",
     {f'pellucid_external_late_total{{{HERE},gen_ai_tool_name="survey"}}': grow((0.4, 90))},
     {"job": "shop", "gen_ai_tool_name": "survey"},
     ("Tool survey (shop): 4 results of its calls in 10m were late, or differed from the first; the limit is 3.")),
    ("RunsNotContinuing", "page",
     gauge("durable_due_age_seconds", 185, f'{HERE},gen_ai_agent_name="support"'),
     {"job": "shop", "gen_ai_agent_name": "support"},
     ("Agent support (shop): a durable run has been due for 3m 5s, and no worker continues it; the limit is 2 min.")),
    ("WorkersBehind", "ticket",
     {**{f'pellucid_durable_due_wait_seconds_{name}{{{HERE},gen_ai_agent_name="support"{le}}}': grow((each, 90))
         for name, le, each in (("bucket", ',le="10"', 0), ("bucket", ',le="30"', 1), ("bucket", ',le="+Inf"', 1),
                                ("count", "", 1))},
      **gauge("durable_due_age_seconds", 20, f'{HERE},gen_ai_agent_name="support"')},
     {"job": "shop", "gen_ai_agent_name": "support"},
     "Agent support (shop): due runs wait for a worker, p95 29s in 10m; the limit is 10 s."),
    ("DurableRunsRetrying", "ticket",
     gauge("durable_retrying_age_seconds", 960, f'{HERE},gen_ai_agent_name="support"'),
     {"job": "shop", "gen_ai_agent_name": "support"},
     "Agent support (shop): the passes of a durable run have failed for 16m 0s; the limit is 15 min."),
    ("DurableWorkersDying", "ticket",
     {f'pellucid_durable_recoveries_total{{{HERE},gen_ai_agent_name="support"}}': grow((0.1, 90))},
     {"job": "shop", "gen_ai_agent_name": "support"},
     ("Agent support (shop): 6 durable runs in 1h were taken over from workers that had died or hung; the limit is "
      "3.")),
    ("AgentProcessBusy", "ticket",
     {f'pellucid_runtime_wakeup_delay_seconds_bucket{{{HERE},le="{bound}"}}': grow((each, 90))
      for bound, each in (("0.1", 0), ("0.25", 10), ("+Inf", 10))}, {"job": "shop", "instance": "a:9464"},
     ("a:9464 of shop is busy: a tenth of its runs waited for 235ms or longer, in 5m, until its event loop resumed "
      "them; the limit is 0.1 s.")),
    ("TelemetryDropping", "ticket",
     {f'pellucid_telemetry_dropped_total{{{HERE},pellucid_telemetry_part="span"}}': grow((2, 90))},
     {"job": "shop", "pellucid_telemetry_part": "span"},
     "shop loses telemetry (span): 20 items dropped or failed in 10m; the limit is 1."),
    ("ToolServerSlow", "ticket",
     {f"mcp_server_operation_duration_seconds_count{{{HERE},{STOCK}}}": grow((10, 90)),
      f"pellucid_mcp_server_over_objective_total{{{HERE},{STOCK}}}": grow((1, 90)), **SERVER},
     {"job": "shop", "pellucid_mcp_server_name": "tools"},
     ("Tool server tools (shop) is slow: 10% of its requests in 10m took longer than its objective of 200ms; the limit "
      "is 5%.")),
    ("ToolServerFailing", "page",
     {f'mcp_server_operation_duration_seconds_count{{{HERE},{STOCK},error_type="tool_error"}}': grow((1, 90))},
     {"job": "shop", "pellucid_mcp_server_name": "tools"},
     "Tool server tools (shop) fails: 100% of its requests in 10m; the limit is 20%."),
    ("ToolServerHanging", "page",
     {f"pellucid_mcp_server_inflight_age_seconds{{{HERE},{STOCK}}}": level((90, 90)), **SERVER},
     {"job": "shop", "pellucid_mcp_server_name": "tools", "mcp_method_name": "tools/call", "gen_ai_tool_name": "stock"},
     ("Tool server tools (shop), tools/call stock, hangs: its oldest request has been in flight for 1m 30s; its "
      "objective is 200ms.")),
    ("MetricLabelsOverflow", "ticket",
     {f'pellucid_telemetry_overflows_total{{{HERE},pellucid_metric_name="gen_ai.execute_tool.duration"}}':
      level((1, 90))}, {"job": "shop", "pellucid_metric_name": "gen_ai.execute_tool.duration"},
     "shop has more series of gen_ai.execute_tool.duration than its limit, in 1 of its processes."),
    ("Watchdog", "none", gauge("cost_total", 1), {},
     "Prometheus evaluates rules, and Alertmanager delivers: this alert always fires."),
    ("CollectorQueueFull", "ticket",
     {f"otelcol_exporter_queue_{name}{{{SENDING}}}": level((value, 91))
      for name, value in (("size", 90), ("capacity", 100))},
     {**STACK, "exporter": "otlp_grpc/jaeger", "data_type": "traces"},
     "Collector c:8888 of stack: 90% of the queue of otlp_grpc/jaeger is used; the limit is 80%."),
    ("CollectorRefusing", "ticket",
     {f'otelcol_receiver_refused_{items}_total{{{OURS},receiver="otlp"}}': grow((each, 90))
      for items, each in (("spans", 1), ("metric_points", 2), ("log_records", 3))}, {**STACK, "receiver": "otlp"},
     "Collector c:8888 of stack refused 60 items from otlp in 10m; the limit is 1."),
    ("CollectorFailing", "ticket",
     {f"otelcol_exporter_{what}_failed_{items}_total{{{SENDING}}}": grow((1, 90))
      for what in ("send", "enqueue") for items in ("spans", "metric_points", "log_records")},
     {**STACK, "exporter": "otlp_grpc/jaeger"},
     "Collector c:8888 of stack lost 60 items for otlp_grpc/jaeger in 10m; the limit is 1."),
    ("PrometheusNotificationsFailing", "page",
     {f'prometheus_notifications_{name}_total{{{OURS},alertmanager="http://a:9093/api/v2/alerts"}}': grow((2, 90))
      for name in ("errors", "dropped")}, {**STACK, "alertmanager": "http://a:9093/api/v2/alerts"},
     ("Prometheus c:8888 of stack failed to send 6 alerts to http://a:9093/api/v2/alerts in 3m; the limit is 1.")),
    ("PrometheusRulesFailing", "page",
     {f'prometheus_{name}_total{{{OURS},rule_group="r.yml;shop"}}': grow((1, 90))
      for name in ("rule_evaluation_failures", "rule_group_iterations_missed")}, {**STACK, "rule_group": "r.yml;shop"},
     "Prometheus c:8888 of stack: 20 evaluations of r.yml;shop failed or were missed in 10m; the limit is 3."),
    ("ConfigReloadFailing", "ticket", {f"alertmanager_config_last_reload_successful{{{OURS}}}": level((0, 91))}, STACK,
     "c:8888 of stack did not take its configuration: the last reload has the state 0 instead of 1."),
    ("AlertmanagerFailing", "page",
     {f'alertmanager_notifications_failed_total{{{OURS},integration="slack",reason="serverError"}}': grow((1, 90))},
     {**STACK, "integration": "slack"},
     "Alertmanager c:8888 of stack failed to send 10 messages by slack in 10m; the limit is 1."),
    ("PrometheusDiskFilling", "ticket",
     {f"prometheus_tsdb_{name}_bytes{{{OURS}}}": level((value, 91)) for name, value in (
         ("storage_blocks", 8e9), ("wal_storage_size", 1e9), ("head_chunks_storage_size", 5e8),
         ("retention_limit", 1e10))},
     STACK, "Prometheus c:8888 of stack uses 95% of the size that its data may have; the limit is 90%."),
    ("PrometheusDiskFailing", "page",
     {f"prometheus_tsdb_{name}_failed_total{{{OURS}}}": grow((1, 90))
      for name in ("compactions", "wal_writes", "checkpoint_creations", "head_truncations")}, STACK,
     "Prometheus c:8888 of stack failed 40 times to write its data in 10m; the limit is 1."),
    ("TracesDiskFilling", "ticket",
     {f"jaeger_storage_badger_{name}_log_bytes_available{{{OURS}}}": level((value, 91))
      for name, value in (("key", 2**30), ("value", 3e9))}, STACK,
     "Jaeger c:8888 of stack has 1GiB left on the disk with its traces; the limit is 2 GB."),
    ("TargetMissing", "ticket", {'up{job="pellucid",instance="c:1"}': level((0, 91))},
     {"job": "pellucid", "instance": "c:1"},
     "c:1 of pellucid does not answer Prometheus: up is 0 instead of 1, for 5 min."),
    ("TargetMissing", "page",
     {f'pellucid_compose_duration_seconds_count{{{HERE},gen_ai_agent_name="support"}}':
      [*late(50, level((9, 5))), *late(40, [])], f"up{{{HERE}}}": [*level((1, 55)), STALE]}, {"job": "shop"},
     "shop has gone: none of the 1 series that it had within 1 h is left, for 5 min."),
]  # fmt: skip


def runbook_url(name: str, labels: Mapping[str, str], severity: str = "page") -> str:
    """Return the address of the page that the relay serves for an alert."""
    query = "".join(f"&{label}={quote_plus(labels[label])}" for label in sorted(labels))
    return f"http://localhost:9095/runbooks/{name}?severity={severity}{query}"


@pytest.mark.parametrize(("name", "severity", "made", "labels", "summary"), SAID, ids=[f"{n}-{s}" for n, s, *_ in SAID])
def test_each_alert_names_who_and_how_much(
    trial: Make,
    name: str,
    severity: str,
    made: dict[str, Sequence[float | None]],
    labels: Mapping[str, str],
    summary: str,
) -> None:
    """Each alert names its subject, the number and the objective or limit, and its links are filled in."""
    alert = ALERTS[name, severity]
    link = re.sub(
        r"{{ \$labels\.(\w+) \| urlquery }}",
        lambda found: labels.get(found[1], "").replace(":", "%3A"),
        alert.dashboard,
    )
    annotations = {
        "summary": summary,
        "description": description(alert),
        "runbook_url": runbook_url(name, labels, severity),
        "dashboard_url": f"http://localhost:3000{link}",
        **(UNDECLARED if alert.annotations else {}),
    }
    found = trial(made)
    found.told(85, name, {**labels, **fixed(alert)}, annotations)
    if name == "ToolHubSlow":  # the others fire, too
        page, ticket = ALERTS[name, "page"], ALERTS[name, "ticket"]
        for other, window in ((page, "5m"), (ticket, "30m"), (STEADY, "6h")):
            if other is not alert:
                said = {
                    **annotations,
                    "description": description(other),
                    "runbook_url": runbook_url(name, labels, other.severity),
                    "summary": re.sub(r"in \d+m", f"in {window}", summary),
                }
                told = {"exp_labels": {**labels, **fixed(other)}, "exp_annotations": said}
                found.alerts[0]["exp_alerts"].append(told)
    found.run()


@pytest.mark.parametrize("name", ['say "hi"', "back\\slash", "two\nlines", "Bücher & mehr", "{{ $x }}", "100% %q"])
def test_names_are_only_text(trial: Make, name: str) -> None:
    """A hub with any characters in its name has its objective in the text, and a link to its dashboard."""
    labels = f"{HERE},pellucid_provider_id={json.dumps(name, ensure_ascii=False)}"
    found = trial(
        {
            **gauge("hub_unanswered_age_seconds", 95, labels),
            **gauge("tool_discovery_inflight", 1, labels),
            **gauge("tool_discovery_objective_seconds", 0.2, labels),
        }
    )
    alert = ALERTS["ToolHubSilent", "page"]
    annotations = {
        "summary": f"Tool hub {name} (shop) is silent: it has not answered since 01:23 UTC, for 1m 35s; requests "
        "without an answer: 1; its objective is 200ms.",
        **UNDECLARED,
        "description": alert.description,
        "runbook_url": runbook_url("ToolHubSilent", {"job": "shop", "pellucid_provider_id": name}),
        "dashboard_url": f"http://localhost:3000/d/pellucid-tool-hubs?var-service=shop&var-provider={quote_plus(name)}",
    }
    found.told(85, "ToolHubSilent", {"job": "shop", "pellucid_provider_id": name, **fixed(alert)}, annotations)
    found.run()


def test_a_streak_is_a_number_of_requests(trial: Make) -> None:
    """The summary of a streak has a number of requests, and neither a share nor a quantile."""
    calls = [float(minute // 20) for minute in range(91)]
    counters = {f"{DURATION}_count{{{ANSWERED}}}": calls, f"pellucid_hub_over_objective_total{{{ANSWERED}}}": calls}
    found = trial({**counters, **gauge("hub_over_objective_streak", 4), **OBJECTIVE})
    summary = "Tool hub rube (shop) is slow: 4 requests to it in a row took longer than its objective of 200ms."
    annotations = {
        "summary": summary,
        **UNDECLARED,
        "description": STREAK.description,
        "runbook_url": runbook_url("ToolHubSlow", HUB, "ticket"),
        "dashboard_url": "http://localhost:3000/d/pellucid-tool-hubs?var-service=shop&var-provider=rube",
    }
    found.told(85, "ToolHubSlow", {**HUB, **fixed(STREAK)}, annotations)
    found.run()


def test_a_hub_without_a_success_has_no_time_of_it(trial: Make) -> None:
    """The summary of a hub that never succeeded says so, and has no time of a success."""
    silence = gauge("hub_unanswered_age_seconds", 0)
    found = trial({f"{DURATION}_count{{{HERE},{ASKED % 'failed'}}}": grow((2, 90)), **silence})
    alert = ALERTS["ToolHubDown", "page"]
    annotations = {
        "summary": "Tool hub rube (shop) is down: 20 requests to it in 10m failed; it has had no success since its "
        "processes started; the limit is 10 min, its latency objective none declared.",
        **UNDECLARED,
        "description": alert.description,
        "runbook_url": runbook_url("ToolHubDown", HUB),
        "dashboard_url": "http://localhost:3000/d/pellucid-tool-hubs?var-service=shop&var-provider=rube",
    }
    found.told(85, "ToolHubDown", {**HUB, **fixed(alert)}, annotations)
    found.run()


def test_each_alert_is_tried() -> None:
    """Each alert has a case here, except the one in `test_score_alerts.py`, which needs more than an hour."""
    assert {(name, severity) for name, severity, *_ in SAID} == set(ALERTS) - {("ScoreDropped", "ticket")}


def test_a_hub_has_its_own_slo(trial: Make) -> None:
    """A hub with `slo=0.5` has spent half of its budget when a quarter of its requests is slow."""
    found = trial({**slow(60, 15), **gauge("hub_slo_ratio", 0.5), **OBJECTIVE})
    found.value(85, "round(pellucid:hub_error_budget:spent7d, 1e-6)", (HUB, 0.5))
    found.firing(85, "ToolHubSlow")
    found.run()


def test_a_low_slo_pages_when_all_requests_are_slow(trial: Make) -> None:
    """A hub with a low SLO pages when all of its requests are slow, as 14.4 times its budget is never reached."""
    found = trial({**slow(60, 60), **gauge("hub_slo_ratio", 0.5), **OBJECTIVE})
    page = ALERTS["ToolHubSlow", "page"]
    found.value(85, 'count(ALERTS{alertname="ToolHubSlow",burn="fast",alertstate="firing"})', ({}, 1))
    assert "or all" in page.description
    found.run()


def test_an_alert_names_what_the_hub_declares(trial: Make) -> None:
    """An alert has what the hub declares: owner as a label, address, runbook and objective as annotations."""
    declared = 'pellucid_hub_owner="payments",pellucid_hub_runbook="https://wiki/rube",server_address="rube.example"'
    silence = gauge("hub_unanswered_age_seconds", 0)
    info = {f"pellucid_hub_info{{{RUBE},{declared}}}": [*level((1, 60)), STALE]}
    objective = {name: [*values[:60], STALE] for name, values in OBJECTIVE.items()}
    found = trial({f"{DURATION}_count{{{HERE},{ASKED % 'failed'}}}": grow((2, 90)), **silence, **info, **objective})
    alert = ALERTS["ToolHubDown", "page"]
    annotations = {
        "summary": "Tool hub rube (shop) is down: 20 requests to it in 10m failed; it has had no success since its "
        "processes started; the limit is 10 min, its latency objective 200ms.",
        "description": alert.description,
        "runbook_url": runbook_url("ToolHubDown", HUB),
        "dashboard_url": "http://localhost:3000/d/pellucid-tool-hubs?var-service=shop&var-provider=rube",
        "hub_address": "rube.example",
        "hub_runbook_url": "https://wiki/rube",
    }
    found.told(85, "ToolHubDown", {**HUB, "severity": "page", "owner": "payments"}, annotations)
    found.run()
