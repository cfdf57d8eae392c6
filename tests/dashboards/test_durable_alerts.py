"""Alerts on durable runs and external calls, tried minute by minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.promtool import HERE, STALE, Make, grow, late, level

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.prometheus

OTHER = HERE.replace("a:9464", "b:9464")
"""Labels of another worker of the same database, which reports the same."""
SURVEY = 'gen_ai_tool_name="survey",pellucid_durable_kind="external"'
PAY = 'gen_ai_tool_name="pay",pellucid_durable_kind="approval"'
TOOL = {"job": "shop", "gen_ai_tool_name": "survey", "severity": "ticket"}
AGENT = {"job": "shop", "gen_ai_agent_name": "support"}


def pending(
    age: Sequence[float | None], used: Sequence[float | None] | None = None, labels: str = f"{HERE},{SURVEY}"
) -> dict[str, Sequence[float | None]]:
    """Return the age of the oldest call by the minute, and the share of its time that it has used."""
    found = {f"pellucid_durable_pending_age_seconds{{{labels}}}": age}
    return found if used is None else {**found, f"pellucid_durable_pending_deadline_used_ratio{{{labels}}}": used}


def test_a_call_without_a_deadline_is_overdue_after_an_hour(trial: Make) -> None:
    """As long as it is pending; then no worker reports it any longer."""
    found = trial(pending([*grow((60, 70)), STALE]))
    found.firing(60, "ExternalToolStuck")
    found.firing(61, "ExternalToolStuck", TOOL)
    found.firing(70, "ExternalToolStuck", TOOL)
    found.firing(71, "ExternalToolStuck")
    found.run()


@pytest.mark.parametrize(("used", "fires"), [(0.49, False), (0.51, True)])
def test_a_call_with_a_deadline_is_overdue_after_half_of_it(trial: Make, used: float, fires: bool) -> None:
    """However old it is: its deadline may be a day or a minute."""
    for age in (30.0, 40_000.0):
        found = trial(pending(level((age, 10)), level((used, 10))))
        found.firing(5, "ExternalToolStuck", *([TOOL] if fires else []))
        found.run()


def test_calls_that_wait_for_people_are_not_overdue(trial: Make) -> None:
    """Approvals are not owed by another process."""
    found = trial(pending(level((90_000, 10)), level((0.9, 10)), f"{HERE},{PAY}"))
    found.firing(5, "ExternalToolStuck")
    found.run()


def test_workers_of_one_database_fire_once(trial: Make) -> None:
    """They report the same, of which the largest counts; ages are not added."""
    age, other = level((2000, 10)), f"{OTHER},{SURVEY}"
    found = trial({**pending(age), **pending(age, labels=other)})
    found.firing(5, "ExternalToolStuck")
    found.run()
    found = trial({**pending(level((3700, 10))), **pending(age, labels=other)})
    found.firing(5, "ExternalToolStuck", TOOL)
    found.run()


RESULTS = f'pellucid_external_wait_seconds_count{{{HERE},gen_ai_tool_name="survey",pellucid_async_tool_status='


@pytest.mark.parametrize(("failed", "expired", "fires"), [(2, 3, True), (2, 2, False), (20, 0, True), (0, 20, True)])
def test_failed_and_missing_results_of_half_an_hour_are_added(
    trial: Make, failed: int, expired: int, fires: bool
) -> None:
    """At least five, and more than a fifth; half an hour after the last one they are forgotten."""
    found = trial(
        {
            f'{RESULTS}"completed"}}': level((0, 40), (10, 40)),
            f'{RESULTS}"failed"}}': level((0, 40), (failed, 40)),
            f'{RESULTS}"expired"}}': late(40, level((expired, 40))),
        }
    )
    found.firing(39, "ExternalToolFailing")
    found.firing(43, "ExternalToolFailing", *([TOOL] if fires else []))
    found.firing(75, "ExternalToolFailing")
    found.run()


@pytest.mark.parametrize("status", ["completed", "cancelled"])
def test_results_that_are_no_failures(trial: Make, status: str) -> None:
    """Five failures of many results are less than a fifth; calls that were cancelled are no failures."""
    found = trial({f'{RESULTS}"{status}"}}': level((0, 40), (30, 10)), f'{RESULTS}"failed"}}': level((0, 40), (5, 10))})
    found.firing(45, "ExternalToolFailing")
    found.run()


def test_late_and_conflicting_results_are_added(trial: Make) -> None:
    """Two are late and one differs; what is settled or repeated is in order, and approvals are not results."""
    settled = f"pellucid_durable_settlements_total{{{HERE},"
    found = trial(
        {
            f'pellucid_external_late_total{{{HERE},gen_ai_tool_name="survey"}}': late(20, level((2, 30))),
            f'{settled}{SURVEY},pellucid_durable_settlement="late"}}': late(20, level((2, 30))),
            f'{settled}{SURVEY},pellucid_durable_settlement="conflict"}}': late(22, level((1, 30))),
            f'{settled}{SURVEY},pellucid_durable_settlement="settled"}}': grow((9, 50)),
            f'{settled}{SURVEY},pellucid_durable_settlement="duplicate"}}': grow((9, 50)),
            f'{settled}{PAY},pellucid_durable_settlement="conflict"}}': grow((9, 50)),
        }
    )
    found.firing(21, "ExternalResultsRejected")
    found.firing(23, "ExternalResultsRejected", TOOL)
    found.firing(35, "ExternalResultsRejected")
    found.run()


def test_a_run_that_no_worker_claims_pages(trial: Make) -> None:
    """After two minutes, of the agent that no worker has; another agent's runs are claimed."""
    due = f"pellucid_durable_due_age_seconds{{{HERE},gen_ai_agent_name="
    found = trial({f'{due}"support"}}': grow((60, 20)), f'{due}"other"}}': level((1.0, 20))})
    found.firing(2, "RunsNotContinuing")
    found.firing(3, "RunsNotContinuing", {**AGENT, "severity": "page"})
    found.run()


def test_a_claimed_run_resolves(trial: Make) -> None:
    """The oldest due run is gone, and of two workers both say so."""
    due = 'pellucid_durable_due_age_seconds{%s,gen_ai_agent_name="support"}'
    ages = level((300, 10), (0, 10))
    found = trial({due % HERE: ages, due % OTHER: ages})
    found.firing(9, "RunsNotContinuing", {**AGENT, "severity": "page"})
    found.firing(11, "RunsNotContinuing")
    found.run()


def claims(*waits: tuple[float, int], each: float = 2.0) -> dict[str, Sequence[float | None]]:
    """Return claims by the minute: phases of (seconds that each run was due, minutes)."""
    series = f'pellucid_durable_due_wait_seconds_%s{{{HERE},gen_ai_agent_name="support"%s}}'
    bounds = (5.0, 10.0, 30.0)
    counts = {
        series % ("bucket", f',le="{bound:g}"'): grow(*((each * (wait <= bound), minutes) for wait, minutes in waits))
        for bound in bounds
    }
    every = grow(*((each, minutes) for _, minutes in waits))
    return {**counts, series % ("bucket", ',le="+Inf"'): every, series % ("count", ""): every}


DUE = f'pellucid_durable_due_age_seconds{{{HERE},gen_ai_agent_name="support"}}'
BEHIND = {**AGENT, "severity": "ticket"}


def test_workers_that_take_runs_late_are_behind(trial: Make) -> None:
    """After five minutes, until no run has waited that long for three."""
    found = trial({**claims((1, 20), (25, 20), (1, 40)), DUE: level((0, 20), (25, 21), (0, 40))})
    for minute in (19, 25):
        found.firing(minute, "WorkersBehind")
    found.firing(30, "WorkersBehind", BEHIND)
    found.firing(30, "RunsNotContinuing")
    found.firing(40, "WorkersBehind", BEHIND)
    found.firing(45, "WorkersBehind")
    found.run()


@pytest.mark.parametrize(
    ("series", "why"),
    [
        ({**claims((25, 40), each=0.4), DUE: level((25, 41))}, "few claims"),
        ({**claims((1, 40)), DUE: level((25, 41))}, "most runs are taken at once"),
        ({**claims((1, 20), (25, 1), (1, 20)), DUE: level((0, 20), (25, 1), (0, 20))}, "a deployment"),
        ({DUE: level((0, 41))}, "nothing is due"),
        ({DUE: level((9000, 41))}, "no worker has the agent"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_workers_are_not_behind(trial: Make, series: dict[str, Sequence[float | None]], why: str) -> None:
    """A single burst, a few runs, and runs that nobody takes: the last are a page of their own."""
    found = trial(series)
    for minute in (22, 27, 40):
        found.firing(minute, "WorkersBehind")
    found.firing(30, "RunsNotContinuing", *([{**AGENT, "severity": "page"}] if why.startswith("no worker") else []))
    found.run()


@pytest.mark.parametrize(("runs", "fires"), [(2, False), (3, True)])
def test_recovered_runs_of_an_hour_are_counted(trial: Make, runs: int, fires: bool) -> None:
    """Of all workers together; an hour later they are forgotten."""
    recovered = 'pellucid_durable_recoveries_total{%s,gen_ai_agent_name="support"}'
    found = trial(
        {
            f"up{{{HERE}}}": level((1, 160)),
            recovered % HERE: level((0, 70), (1, 90)),
            recovered % OTHER: level((0, 75), (runs - 1, 85)),
        }
    )
    found.firing(69, "DurableWorkersDying")
    found.firing(80, "DurableWorkersDying", *([{**AGENT, "severity": "ticket"}] if fires else []))
    found.firing(150, "DurableWorkersDying")
    found.run()


@pytest.mark.parametrize(("age", "fires"), [(890.0, False), (910.0, True)])
def test_a_run_that_retries_for_a_quarter_of_an_hour_fires(trial: Make, age: float, fires: bool) -> None:
    """Also while an attempt is running, when the gauge is 0 for a moment; not any longer once the run has ended."""
    retrying = f'pellucid_durable_retrying_age_seconds{{{HERE},gen_ai_agent_name="support"}}'
    found = trial({retrying: level((0, 5), (age, 10), (0, 1), (age, 10), (0, 20))})
    expected = [{**AGENT, "severity": "ticket"}] if fires else []
    found.firing(4, "DurableRunsRetrying")
    for minute in (10, 15, 20):
        found.firing(minute, "DurableRunsRetrying", *expected)
    found.firing(40, "DurableRunsRetrying")
    found.run()
