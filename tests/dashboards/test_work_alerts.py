"""Alerts on tools, models, runs, spending, approvals, telemetry and targets, tried minute by minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.promtool import HERE, STALE, Make, add, grow, late, level

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.prometheus


RATIOS = {
    "ToolFailing": ("gen_ai_execute_tool_duration_seconds", 'gen_ai_tool_name="search"', "ticket", 0.2),
    "ModelFailing": (
        "gen_ai_client_operation_duration_seconds",
        'gen_ai_provider_name="acme",gen_ai_request_model="gpt"',
        "page",
        0.1,
    ),
    "RunFailing": ("gen_ai_invoke_agent_duration_seconds", 'gen_ai_agent_name="support"', "page", 0.1),
}
"""Metric, labels, severity and limit of the alerts on a share of failures."""

MODEL = 'gen_ai_provider_name="acme",gen_ai_request_model="gpt"'
MODEL_LABELS = {"job": "shop", "gen_ai_provider_name": "acme", "gen_ai_request_model": "gpt"}


def ended(alert: str, values: Sequence[float | None], error: str = "") -> dict[str, Sequence[float | None]]:
    """Return how many calls or runs ended, with an error or without."""
    metric, labels, _, _ = RATIOS[alert]
    word = f',error_type="{error}"' if error else ""
    return {f"{metric}_count{{{HERE},{labels}{word}}}": values}


def labels_of(alert: str) -> dict[str, str]:
    """Return the labels with which it fires."""
    _, labels, severity, _ = RATIOS[alert]
    pairs = (pair.split("=") for pair in labels.split(","))
    return {"job": "shop", "severity": severity, **{name: value.strip('"') for name, value in pairs}}


@pytest.mark.parametrize("alert", RATIOS)
def test_failures_fire_and_resolve(trial: Make, alert: str) -> None:
    """An alert on a share of failures fires while half fail, also with a new error, and resolves afterwards."""
    found = trial(
        {
            **ended(alert, grow((10, 20), (5, 10), (10, 30))),
            **ended(alert, late(20, grow((5, 10), (0, 30))), "timeout"),
        }
    )
    found.firing(20, alert)
    found.firing(29, alert, labels_of(alert))
    found.firing(45, alert)
    found.run()


@pytest.mark.parametrize("alert", RATIOS)
@pytest.mark.parametrize(("off", "fires"), [(-0.1, False), (0.1, True)], ids=["below", "above"])
def test_failures_at_the_boundary(trial: Make, alert: str, off: float, fires: bool) -> None:
    """A share of failures just below the limit fires no alert, and one just above it does."""
    failed = RATIOS[alert][3] * 100 + off
    found = trial({**ended(alert, grow((100 - failed, 30))), **ended(alert, grow((failed, 30)), "500")})
    found.firing(25, alert, *([labels_of(alert)] if fires else []))
    found.run()


@pytest.mark.parametrize("alert", RATIOS)
@pytest.mark.parametrize(("failures", "fires"), [(4, False), (5, True)])
def test_few_failures_tell_nobody(trial: Make, alert: str, failures: int, fires: bool) -> None:
    """Four failures fire no alert, though nothing succeeds; five do, even if they are the first ever."""
    found = trial(ended(alert, late(10, level((failures, 10))), "500"))
    found.firing(13, alert, *([labels_of(alert)] if fires else []))
    found.run()


@pytest.mark.parametrize(
    "error",
    [
        "approval_denied",
        "approval_expired",
        "permission_denied",
        "policy_halt",
        "unknown_tool",
        "max_tool_calls",
        "max_cost",
    ],
)
def test_refused_calls_are_no_failures(trial: Make, error: str) -> None:
    """Refused calls count neither as failures nor as calls: half of the others failing still fires."""
    found = trial({**ended("ToolFailing", grow((100, 30)), error), **ended("ToolFailing", grow((2, 30)))})
    found.firing(25, "ToolFailing")
    found.run()
    found = trial(
        {
            **ended("ToolFailing", grow((100, 30)), error),
            **ended("ToolFailing", grow((2, 30))),
            **ended("ToolFailing", grow((2, 30)), "tool_error"),
        }
    )
    found.firing(25, "ToolFailing", labels_of("ToolFailing"))
    found.run()


def test_halted_runs_are_no_failures(trial: Make) -> None:
    """Runs that the permission policy halted do not count as failures."""
    found = trial({**ended("RunFailing", grow((50, 30)), "policy_halt"), **ended("RunFailing", grow((1, 30)))})
    found.firing(25, "RunFailing")
    found.run()


def in_phase(phase: str, values: Sequence[float | None]) -> dict[str, Sequence[float | None]]:
    """Return failed runs of the agent by phase."""
    labels = f'{HERE},gen_ai_agent_name="support",pellucid_phase="{phase}",error_type="500"'
    return {f"pellucid_run_failures_total{{{labels}}}": values}


def test_runs_that_failed_in_discovery_are_left_to_the_hub(trial: Make) -> None:
    """Runs that failed in discovery are left to the hub's alert: a broken hub pages once."""
    failed = ended("RunFailing", grow((9, 30)), "500")
    found = trial({**failed, **in_phase("discovery", grow((9, 30))), **ended("RunFailing", grow((1, 30)))})
    found.value(25, "round(pellucid:runs_failed_in_discovery:increase10m)", (_of_support(), 90))
    found.firing(25, "RunFailing")
    found.run()


@pytest.mark.parametrize("phase", ["inference", "dispatch", "run"])
def test_runs_that_failed_elsewhere_page(trial: Make, phase: str) -> None:
    """Runs that fail in another phase than discovery page."""
    failed = ended("RunFailing", grow((9, 30)), "500")
    found = trial({**failed, **in_phase(phase, grow((9, 30))), **ended("RunFailing", grow((1, 30)))})
    found.firing(25, "RunFailing", labels_of("RunFailing"))
    found.run()


def test_failures_that_a_broken_hub_leaves_page(trial: Make) -> None:
    """Runs that get tools and fail by their model page, although a broken hub ends nine of ten runs."""
    failed = ended("RunFailing", grow((10, 30)), "500")
    phases = {**in_phase("discovery", grow((9, 30))), **in_phase("inference", grow((1, 30)))}
    found = trial({**failed, **phases})
    found.firing(25, "RunFailing", labels_of("RunFailing"))
    found.run()


def _of_support() -> dict[str, str]:
    return {"job": "shop", "gen_ai_agent_name": "support"}


def calls(quick: Sequence[float], slow: Sequence[float]) -> dict[str, Sequence[float | None]]:
    """Return calls of a model: quick ones to 20.48 s, slow ones to 40.96 s."""
    name, labels = "gen_ai_client_operation_duration_seconds", f"{HERE},{MODEL}"
    both = add(quick, slow)
    return {
        f'{name}_bucket{{{labels},le="20.48"}}': quick,
        f'{name}_bucket{{{labels},le="40.96"}}': both,
        f'{name}_bucket{{{labels},le="+Inf"}}': both,
        f"{name}_count{{{labels}}}": both,
    }


def test_model_slow_fires_and_resolves(trial: Make) -> None:
    """The alert fires while a tenth of the calls takes longer than 20.48 s, and resolves afterwards."""
    found = trial(calls(grow((10, 20), (9, 30), (10, 30)), grow((0, 20), (1, 30), (0, 30))))
    found.firing(20, "ModelSlow")
    found.firing(45, "ModelSlow", {**MODEL_LABELS, "severity": "ticket"})
    found.firing(75, "ModelSlow")
    found.run()


@pytest.mark.parametrize(("slow", "fires"), [(9.3, False), (9.4, True)])
def test_model_slow_at_the_boundary(trial: Make, slow: float, fires: bool) -> None:
    """The alert begins at a p95 of 30 s: with s slow calls of 100, p95 is 20.48 + 20.48 * (s - 5) / s."""
    found = trial(calls(grow((100 - slow, 40)), grow((slow, 40))))
    found.firing(35, "ModelSlow", *([{**MODEL_LABELS, "severity": "ticket"}] if fires else []))
    found.run()


@pytest.mark.parametrize(("rate", "fires"), [(1.9, False), (2.1, True)])
def test_model_slow_needs_traffic(trial: Make, rate: float, fires: bool) -> None:
    """A model with 19 calls in 10 min has no alert, though all of them are slow."""
    found = trial(calls(grow((0, 40)), grow((rate, 40))))
    found.firing(35, "ModelSlow", *([{**MODEL_LABELS, "severity": "ticket"}] if fires else []))
    found.run()


@pytest.mark.parametrize(("rate", "fires"), [(82_000, False), (84_000, True)])
def test_token_burn(trial: Make, rate: float, fires: bool) -> None:
    """Ten million tokens in an hour, input and output together, open a ticket that resolves when they are few again."""
    token = f"gen_ai_client_token_usage_sum{{{HERE},{MODEL},gen_ai_token_type="
    found = trial({f'{token}"{kind}"}}': grow((rate, 70), (10, 70)) for kind in ("input", "output")})
    found.firing(65, "TokenBurn", *([{**MODEL_LABELS, "severity": "ticket"}] if fires else []))
    found.firing(135, "TokenBurn")
    found.run()


@pytest.mark.parametrize(("dollars", "fires"), [(49.9, False), (50.1, True)])
def test_cost_burn(trial: Make, dollars: float, fires: bool) -> None:
    """Fifty dollars in an hour alert, also in the first call that cost anything; the alert resolves an hour later."""
    found = trial({f"pellucid_cost_total{{{HERE},{MODEL}}}": late(70, level((dollars, 70)))})
    found.firing(69, "CostBurn")
    found.firing(72, "CostBurn", *([{**MODEL_LABELS, "severity": "page"}] if fires else []))
    found.firing(135, "CostBurn")
    found.run()


BUDGET = {"job": "shop", "pellucid_budget_name": "tenant-7", "pellucid_budget_kind": "cost"}


def test_a_budget_is_nearly_spent(trial: Make) -> None:
    """A budget opens a ticket by the most that any process saw spent, and resolves when the next period begins."""
    facts = 'job="shop",pellucid_budget_name="tenant-7",pellucid_budget_kind="cost"'
    seen: dict[str, Sequence[float | None]] = {
        f'pellucid_budget_spent{{{facts},instance="a"}}': level((15, 10), (17, 10), (0, 10)),
        f'pellucid_budget_spent{{{facts},instance="b"}}': level((3, 20), (0, 10)),
        f'pellucid_budget_limit{{{facts},instance="a"}}': level((20, 30)),
    }
    found = trial(seen)
    found.firing(9, "BudgetNearlySpent")
    found.firing(12, "BudgetNearlySpent", {**BUDGET, "severity": "ticket"})
    found.firing(22, "BudgetNearlySpent")
    found.run()


PENDING = f'pellucid_approval_pending{{{HERE},gen_ai_tool_name="pay"}}'
DECIDED = f'pellucid_approval_wait_seconds_count{{{HERE},gen_ai_tool_name="pay"}}'
APPROVAL = {"job": "shop", "gen_ai_tool_name": "pay", "severity": "ticket"}


def test_approvals_waiting_fires_and_resolves(trial: Make) -> None:
    """A call that waits for 20 min fires the alert, which resolves when somebody decides."""
    found = trial({PENDING: level((0, 10), (1, 20), (0, 10)), DECIDED: late(30, level((1, 10)))})
    found.firing(23, "ApprovalsWaiting")  # it has waited for 14 min
    found.firing(25, "ApprovalsWaiting", APPROVAL)
    found.firing(31, "ApprovalsWaiting")
    found.run()


def test_approvals_waiting_counts_from_the_last_decision(trial: Make) -> None:
    """Calls that wait fire the alert by the time since the last decision."""
    found = trial({PENDING: level((2, 60)), DECIDED: level((1, 10), (2, 50))})
    found.firing(23, "ApprovalsWaiting")
    found.firing(26, "ApprovalsWaiting", APPROVAL)
    found.run()


@pytest.mark.parametrize(("pending", "fires"), [(19, False), (20, True)])
def test_approvals_that_are_decided_may_be_some(trial: Make, pending: float, fires: bool) -> None:
    """Many approvals that are decided fire no alert unless the queue is long."""
    found = trial({PENDING: level((pending, 60)), DECIDED: grow((1, 60))})
    found.firing(50, "ApprovalsWaiting", *([APPROVAL] if fires else []))
    found.run()


def test_approvals_of_two_processes_are_added(trial: Make) -> None:
    """Approvals of two processes are added: a call that one asked for and the other took up waits no longer."""
    other = PENDING.replace("a:9464", "b:9464")
    found = trial({PENDING: level((1, 60)), other: level((-1, 60))})
    found.firing(50, "ApprovalsWaiting")
    found.run()


def test_approvals_of_durable_runs_are_those_of_the_store(trial: Make) -> None:
    """Approvals of durable runs are counted by the store, whose two workers report them alike, not by process."""
    here = f'pellucid_durable_pending{{{HERE},gen_ai_tool_name="pay",pellucid_durable_kind="approval"}}'
    runs = f'pellucid_durable_runs{{{HERE},pellucid_durable_status="waiting"}}'
    others = [name.replace("a:9464", "b:9464") for name in (here, runs, PENDING)]
    pending, counts = level((12, 30), (0, 30)), level((9, 60))
    found = trial(
        {here: pending, runs: counts, PENDING: counts, **dict(zip(others, (pending, counts, counts), strict=True))}
    )
    found.value(20, "pellucid:approvals_pending", ({"job": "shop", "gen_ai_tool_name": "pay"}, 12))
    found.firing(20, "ApprovalsWaiting", APPROVAL)
    found.firing(31, "ApprovalsWaiting")
    found.run()
    found = trial({here: [*level((1, 30)), STALE], runs: counts, PENDING: counts})
    found.firing(20, "ApprovalsWaiting", APPROVAL)
    found.firing(31, "ApprovalsWaiting")
    found.run()


STORED = f'pellucid_durable_pending{{{HERE},gen_ai_tool_name="pay",pellucid_durable_kind="approval"}}'
OPEN = f'pellucid_durable_runs{{{HERE},pellucid_durable_status="waiting"}}'


def test_approvals_wait_on_without_the_process_that_asked(trial: Make) -> None:
    """Approvals in the store wait on without the process that asked for them, if another worker reads them."""
    other = [name.replace("a:9464", "b:9464") for name in (STORED, OPEN)]
    asked = {name: [*level((1, 10)), STALE] for name in (STORED, OPEN, PENDING)}
    found = trial({**asked, **dict.fromkeys(other, late(11, level((1, 40))))})
    found.value(30, "pellucid:approvals_pending", ({"job": "shop", "gen_ai_tool_name": "pay"}, 1))
    found.firing(14, "ApprovalsWaiting")
    for minute in (16, 30, 50):
        found.firing(minute, "ApprovalsWaiting", APPROVAL)
    found.run()


@pytest.mark.parametrize(
    ("kind", "status", "outcome", "decided"),
    [
        ("approval", "completed", "settled", True),
        ("approval", "expired", "settled", False),
        ("approval", "completed", "late", False),
        ("external", "completed", "settled", False),
    ],
)
def test_decisions_that_no_run_has_read_yet(trial: Make, kind: str, status: str, outcome: str, decided: bool) -> None:
    """A decision counts before its run has read it; expiries, late decisions and results of other calls do not."""
    settled = (
        f'pellucid_durable_settlements_total{{{HERE},gen_ai_tool_name="pay",pellucid_durable_kind="{kind}",'
        f'pellucid_async_tool_status="{status}",pellucid_durable_settlement="{outcome}"}}'
    )
    found = trial({STORED: level((3, 20), (2, 40)), OPEN: level((1, 60)), settled: late(20, level((1, 40)))})
    found.firing(19, "ApprovalsWaiting", APPROVAL)
    found.firing(30, "ApprovalsWaiting", *([] if decided else [APPROVAL]))
    found.firing(36, "ApprovalsWaiting", APPROVAL)
    found.run()


@pytest.mark.parametrize("metric", ["dropped", "errors"])
def test_telemetry_dropping(trial: Make, metric: str) -> None:
    """The first item that is lost fires the alert, which resolves 10 min later; losses of before do not count."""
    name = f"pellucid_telemetry_{metric}_total{{{HERE},pellucid_telemetry_part="
    found = trial({f'{name}"span"}}': late(20, level((1, 20))), f'{name}"log"}}': level((7, 40))})
    found.firing(19, "TelemetryDropping")
    found.firing(20, "TelemetryDropping", {"job": "shop", "pellucid_telemetry_part": "span", "severity": "ticket"})
    found.firing(35, "TelemetryDropping")
    found.run()


def test_what_a_new_target_lost_before_is_no_news(trial: Make) -> None:
    """Items that a process lost before Prometheus found it fire no alert."""
    found = trial(
        {
            f"up{{{HERE}}}": late(20, level((1, 20))),
            f'pellucid_telemetry_dropped_total{{{HERE},pellucid_telemetry_part="span"}}': late(20, level((900, 20))),
        }
    )
    for minute in (20, 25, 31):
        found.firing(minute, "TelemetryDropping")
    found.run()


UP = f"up{{{HERE}}}"
SEEN = f'pellucid_compose_duration_seconds_count{{{HERE},gen_ai_agent_name="support"}}'
TARGET = {"job": "shop", "instance": "a:9464", "severity": "ticket", "missing": "target"}
SERVICE = {"job": "shop", "severity": "page", "missing": "service"}


def test_target_missing_fires_and_resolves(trial: Make) -> None:
    """A process that does not answer for a while opens a ticket, while its service is there."""
    other = SEEN.replace("a:9464", "b:9464")
    found = trial({UP: level((1, 10), (0, 10), (1, 10)), SEEN: grow((1, 9)), other: grow((1, 29))})
    found.firing(14, "TargetMissing")
    found.firing(15, "TargetMissing", TARGET)
    found.firing(19, "TargetMissing", TARGET)
    found.firing(20, "TargetMissing")
    found.run()


def test_service_missing_fires_and_resolves(trial: Make) -> None:
    """A service with no process and no target left pages; an hour later it counts as stopped on purpose."""
    found = trial({UP: [*level((1, 11)), *late(139, [])], SEEN: [*grow((1, 10)), STALE]})
    found.firing(10, "TargetMissing")
    found.firing(22, "TargetMissing", SERVICE)
    found.firing(60, "TargetMissing", SERVICE)
    found.firing(75, "TargetMissing")
    found.run()


OF_SERVICES = {
    "another framework": 'pellucid_hub_unanswered_age_seconds{%s,pellucid_provider_id="rube"}',
    "another framework, its models": 'gen_ai_client_operation_duration_seconds_count{%s,gen_ai_request_model="m"}',
    "a tool server": 'mcp_server_operation_duration_seconds_count{%s,mcp_method_name="tools/list"}',
    "native": 'pellucid_compose_duration_seconds{%s,gen_ai_agent_name="main"}',
}


@pytest.mark.parametrize("measured", OF_SERVICES.values(), ids=OF_SERVICES)
def test_services_without_agents_of_ours_go_missing(trial: Make, measured: str) -> None:
    """A service without agents of ours goes missing too, whether it is scraped, or sends and has no target."""
    scraped, pushed = measured % HERE, measured % 'job="desk",instance="d1"'
    found = trial(
        {UP: [*level((1, 11)), *late(139, [])], **{each: [*grow((1, 10)), STALE] for each in (scraped, pushed)}}
    )
    found.firing(10, "TargetMissing")
    found.firing(22, "TargetMissing", SERVICE, {**SERVICE, "job": "desk"})
    found.firing(75, "TargetMissing")
    found.run()


def test_a_service_that_sends_on_is_there(trial: Make) -> None:
    """A service that has no target and sends the same values again and again is not missing."""
    found = trial({SEEN.replace(HERE, 'job="desk",instance="d1"'): level((3, 60))})
    for minute in (10, 30, 59):
        found.firing(minute, "TargetMissing")
    found.run()


@pytest.mark.parametrize("instance", ["a:9464", "b:9464"], ids=["same address", "another"])
def test_a_service_that_waits_for_work_has_not_gone(trial: Make, instance: str) -> None:
    """A service that restarts and measures nothing is not missing while it answers Prometheus."""
    after = UP.replace("a:9464", instance)
    found = trial(
        {
            UP: [*level((1, 10)), 0, STALE],
            SEEN: [*grow((1, 9)), STALE],
            after: [*(level((1, 10), (0, 1)) if after == UP else late(11, [])), *level((1, 60))],
        }
    )
    for minute in range(10, 70):
        found.firing(minute, "TargetMissing")
    found.run()


def test_a_service_that_begins_again_and_again_has_gone(trial: Make) -> None:
    """A service whose processes each live for a minute, at addresses of their own, and do no work is missing."""
    crashes = {UP.replace("a:", f"{n}:"): late(11 + 3 * n, [1, STALE]) for n in range(10)}
    found = trial({UP: [*level((1, 10)), STALE], SEEN: [*grow((1, 9)), STALE], **crashes})
    found.firing(20, "TargetMissing", SERVICE)
    found.run()


def test_a_target_that_is_still_to_be_scraped_stays_missing(trial: Make) -> None:
    """A target that does not answer stays missing after its service counts as gone, until it is mended."""
    found = trial({UP: level((1, 10), (0, 110), (1, 10)), SEEN: [*grow((1, 9)), STALE]})
    found.firing(60, "TargetMissing", TARGET, SERVICE)
    found.firing(119, "TargetMissing", TARGET)
    found.firing(121, "TargetMissing")
    found.run()


@pytest.mark.parametrize(("job", "fires"), [("pellucid", True), ("stack", True), ("database", False)])
def test_other_targets_are_not_ours(trial: Make, job: str, fires: bool) -> None:
    """A target that never measured anything is expected to be up only if its job is one of `prometheus.yml`."""
    found = trial({f'up{{job="{job}",instance="c:1"}}': level((0, 20))})
    expected = {"job": job, "instance": "c:1", "severity": "ticket", "missing": "target"}
    found.firing(15, "TargetMissing", *([expected] if fires else []))
    found.run()
