"""Alerts on tool hubs, tried minute by minute: each fires, does not, resolves, and keeps to its boundary."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from pellucid_dashboards.rules import Thresholds, render
from support.promtool import ANSWERED, DURATION, HERE, HUB, RUBE, WAITS, Make, add, grow, late, level

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.prometheus


OVER = "pellucid_hub_over_objective_total"
OBJECTIVE = f"pellucid_tool_discovery_objective_seconds{{{RUBE}}}"
UNASSIGNED = {"owner": "unassigned"}
PAGE = {**HUB, **UNASSIGNED, "severity": "page"}
TICKET = {**HUB, **UNASSIGNED, "severity": "ticket"}
FAST = {**PAGE, "burn": "fast"}
SLOW = {**TICKET, "burn": "slow"}
STEADY = {**TICKET, "burn": "steady"}


def round_trips(
    quick: Sequence[float], slow: Sequence[float], *, labels: str = ANSWERED
) -> dict[str, Sequence[float | None]]:
    """Return the number of round trips, and of those over the objective."""
    return {f"{DURATION}_count{{{labels}}}": add(quick, slow), f"{OVER}{{{labels}}}": slow}


def lookups(
    values: Sequence[float | None], *, cache: str, error: str = "", labels: str = RUBE
) -> dict[str, Sequence[float | None]]:
    """Return the number of discoveries of one outcome."""
    word = f',error_type="{error}"' if error else ""
    return {f'{WAITS}_count{{{labels},pellucid_provider_kind="hub",pellucid_discovery_cache="{cache}"{word}}}': values}


def requests(
    values: Sequence[float | None], outcome: str = "completed", error: str = "", labels: str = RUBE
) -> dict[str, Sequence[float | None]]:
    """Return the number of requests of one outcome."""
    word = f',error_type="{error}"' if error else ""
    return {f'{DURATION}_count{{{labels},pellucid_provider_kind="hub",pellucid_outcome="{outcome}"{word}}}': values}


def test_slow_fires_against_the_own_objective_and_resolves(trial: Make) -> None:
    """A hub that becomes slow pages within minutes, and no more 5 min after it is quick again."""
    found = trial(round_trips(grow((60, 60), (0, 30), (60, 60)), grow((0, 60), (60, 30), (0, 60))))
    found.firing(60, "ToolHubSlow")
    found.firing(85, "ToolHubSlow", FAST, SLOW, STEADY)
    found.firing(100, "ToolHubSlow", SLOW, STEADY)  # the last half hour and the last 6 h are still bad
    found.firing(150, "ToolHubSlow", STEADY)  # as are the last 6 h and the last 3 days
    found.run()


@pytest.mark.parametrize("objective", [True, False])
def test_without_an_objective_nobody_knows_what_is_slow(trial: Make, objective: bool) -> None:
    """A hub without an objective is never slow: the counter of slow requests exists only for hubs with an objective."""
    series = round_trips(grow((0, 60)), grow((60, 60)))
    if not objective:
        del series[f"{OVER}{{{ANSWERED}}}"]
    found = trial(series)
    found.firing(59, "ToolHubSlow", *([FAST, SLOW, STEADY] if objective else []))
    found.run()


def test_a_hub_whose_first_round_trip_is_slow_is_counted_from_nothing(trial: Make) -> None:
    """A hub whose first scrape shows 30 round trips, all slow, pages: the first value counts from nothing."""
    series = round_trips(level((0, 30)), level((30, 30)))
    found = trial({name: late(70, values) for name, values in series.items()})
    found.firing(69, "ToolHubSlow")
    found.firing(73, "ToolHubSlow", FAST)
    found.run()


@pytest.mark.parametrize(("slow", "expected"), [(8.63, ()), (8.65, (FAST,))], ids=["below", "above"])
def test_slow_at_the_boundary_of_the_fast_burn(trial: Make, slow: float, expected: Sequence[dict[str, str]]) -> None:
    """A fast burn begins at 14.4 % of slow round trips: 8.64 of 60 a minute."""
    series = round_trips(grow((60 - slow, 120)), grow((slow, 120)))
    found = trial(series)
    found.firing(110, "ToolHubSlow", SLOW, STEADY, *expected)
    found.run()


@pytest.mark.parametrize(("slow", "expected"), [(3.59, ()), (3.61, (SLOW,))], ids=["below", "above"])
def test_slow_at_the_boundary_of_the_slow_burn(trial: Make, slow: float, expected: Sequence[dict[str, str]]) -> None:
    """A slow burn begins at 6 % of slow round trips, 3.6 of 60 a minute, and pages nobody."""
    series = round_trips(grow((60 - slow, 400)), grow((slow, 400)))
    found = trial(series)
    found.firing(390, "ToolHubSlow", STEADY, *expected)
    found.run()


@pytest.mark.parametrize(("count", "fires"), [(0.3, False), (0.4, True)], ids=["18 an hour", "24 an hour"])
def test_slow_needs_traffic(trial: Make, count: float, fires: bool) -> None:
    """A hub with few round trips pages nobody, however many of them are slow."""
    found = trial(round_trips(grow((0, 120)), grow((count, 120))))
    found.firing(110, "ToolHubSlow", SLOW, STEADY, *([FAST] if fires else []))
    found.run()


@pytest.mark.parametrize(("slow", "expected"), [(0.59, ()), (0.61, (STEADY,))], ids=["below", "above"])
def test_slow_at_the_boundary_of_the_budget(trial: Make, slow: float, expected: Sequence[dict[str, str]]) -> None:
    """More than 1 % of slow round trips, 0.6 of 60 a minute, opens a ticket if it lasts for days."""
    found = trial(round_trips(grow((60 - slow, 400)), grow((slow, 400))))
    found.firing(390, "ToolHubSlow", *expected)
    found.run()


def test_slow_forgives_a_short_burst(trial: Make) -> None:
    """Two slow minutes of an hour do not spend enough of the budget for an alert."""
    series = round_trips(grow((60, 60), (0, 2), (60, 20)), grow((0, 60), (60, 2), (0, 20)))
    found = trial(series)
    for minute in (62, 63, 65, 70):
        found.firing(minute, "ToolHubSlow")
    found.run()


def test_slow_looks_at_what_the_hub_did(trial: Make) -> None:
    """Waits of runs, joined lookups and lookups that went on without the hub do not count as slow requests."""
    found = trial(
        {
            **round_trips(grow((60, 60)), grow((0, 60))),
            **lookups(grow((600, 60)), cache="joined"),
            **lookups(grow((600, 60)), cache="pending"),
            f'pellucid_tool_discovery_over_objective_total{{{RUBE},pellucid_discovery_cache="joined"}}': grow(
                (600, 60)
            ),
        }
    )
    found.firing(59, "ToolHubSlow")
    found.run()


def streak(values: Sequence[float | None], instance: str = "a:9464") -> dict[str, Sequence[float | None]]:
    """Return the number of slow requests in a row, as one process counts them."""
    labels = f'job="shop",instance="{instance}",pellucid_provider_id="rube"'
    return {f"pellucid_hub_over_objective_streak{{{labels}}}": values}


STREAK = {**TICKET, "burn": "streak"}


@pytest.mark.parametrize("slow", [True, False])
def test_a_hub_that_is_seldom_called_opens_a_ticket_after_three(trial: Make, slow: bool) -> None:
    """A hub that is called every 20 min opens a ticket after three slow requests in a row."""
    calls = [float(minute // 20) for minute in range(160)]
    series = round_trips([0.0] * 160 if slow else calls, calls if slow else [0.0] * 160)
    found = trial({**series, **streak(calls if slow else [0.0] * 160)})
    found.firing(59, "ToolHubSlow")
    found.firing(70, "ToolHubSlow", *([STREAK] if slow else []))
    found.firing(150, "ToolHubSlow", *([STREAK] if slow else []))
    found.run()


def test_a_streak_of_a_process_that_asks_no_more_is_none(trial: Make) -> None:
    """A process whose last requests were slow, a day ago, opens no ticket while another process finds the hub quick."""
    there = {name.replace("a:9464", "b:9464"): v for name, v in round_trips(grow((0.1, 2000)), grow((0, 2000))).items()}
    here = round_trips([3.0] * 2001, [3.0] * 2001)
    found = trial({**there, **here, **streak([3.0] * 2001)})
    found.firing(1900, "ToolHubSlow")
    found.run()


def test_a_slow_hub_with_traffic_has_no_ticket_of_its_streak(trial: Make) -> None:
    """A slow hub with traffic has no ticket of its streak, since the alerts on its share fire."""
    found = trial({**round_trips(grow((0, 90)), grow((60, 90))), **streak(grow((60, 90)))})
    found.firing(85, "ToolHubSlow", FAST, SLOW, STEADY)
    found.run()


def once(number: int, values: dict[str, float], total: int, samples: int = 1) -> dict[str, Sequence[float | None]]:
    """Return the series of a process that pushes, at a minute of its own, and ends; it has no `up`."""
    found: dict[str, Sequence[float | None]] = {}
    for name, value in values.items():
        minutes: list[float | None] = [None] * total
        minutes[1 + number : 1 + number + samples] = [value] * samples
        found[name.replace("a:9464", f"run-{number}")] = minutes
    return found


@pytest.mark.parametrize("samples", [1, 2])
def test_processes_that_run_once_alert(trial: Make, samples: int) -> None:
    """Processes that run once, with a sample or two each, alert on a hub that is slow or fails each time."""
    failed = (
        f'{HERE},pellucid_provider_id="git",pellucid_provider_kind="hub",pellucid_outcome="failed",error_type="500"'
    )
    series: dict[str, Sequence[float | None]] = {}
    for number in range(45):
        each = {
            f"{DURATION}_count{{{ANSWERED}}}": 1.0,
            f"{OVER}{{{ANSWERED}}}": 1.0,
            f"{DURATION}_count{{{failed}}}": 1.0,
        }
        series |= once(number, each, 60, samples)
    found = trial(series)
    found.firing(40, "ToolHubSlow", FAST, SLOW, STEADY)
    found.firing(40, "ToolHubFailing", {**PAGE, "pellucid_provider_id": "git"})
    found.run()


def test_processes_that_run_seldom_and_once_open_a_ticket(trial: Make) -> None:
    """Three processes in a day that each find the hub slow once open a ticket."""
    series: dict[str, Sequence[float | None]] = {}
    for number in range(3):
        series |= once(number * 100, {f"{DURATION}_count{{{ANSWERED}}}": 1.0, f"{OVER}{{{ANSWERED}}}": 1.0}, 300)
    found = trial(series)
    found.firing(190, "ToolHubSlow")
    found.firing(203, "ToolHubSlow", STREAK)
    found.run()


def test_slow_survives_a_restart(trial: Make) -> None:
    """A restart, after which counters begin at 0, neither adds slow round trips nor fires an alert."""
    quick = [*grow((60, 60)), *grow((60, 60))]
    slow = [*grow((0.5, 60), start=5000), *grow((0, 60))]
    found = trial(round_trips(quick, slow))
    for minute in (60, 61, 63, 65, 70):
        found.firing(minute, "ToolHubSlow")
    found.run()


def age(values: Sequence[float | None], hub: str = "rube") -> dict[str, Sequence[float | None]]:
    """Return for how long a hub has not answered, with one request in flight as long as that is more than 0."""
    labels = f'{HERE},pellucid_provider_id="{hub}"'
    return {
        f"pellucid_hub_unanswered_age_seconds{{{labels}}}": values,
        f"pellucid_tool_discovery_inflight{{{labels}}}": [
            value if value is None else float(value > 0) for value in values
        ],
    }


def test_silent_fires_before_any_request_has_ended(trial: Make) -> None:
    """A hub that hangs at its first request pages, before there is any histogram, and resolves when it answers."""
    found = trial({**age(late(2, [0, 15, 60, 120, *level((0, 10))])), OBJECTIVE: level((0.2, 16))})
    found.firing(3, "ToolHubSilent")  # 15 s are not more than 15 s
    found.firing(4, "ToolHubSilent", PAGE)
    found.firing(5, "ToolHubSilent", PAGE)
    found.firing(11, "ToolHubSilent", PAGE)  # it is kept for 6 min
    found.firing(13, "ToolHubSilent")
    found.run()


@pytest.mark.parametrize("objective", [None, 5.0])
def test_silent_although_callers_give_up(trial: Make, objective: float | None) -> None:
    """A hub that does not answer pages within 2 min although callers give up, and says when the silence began."""
    given_up = requests(late(30, grow((12, 30), start=1)), "abandoned")
    silence = age([*level((0, 30)), *(60.0 * n for n in range(31))])
    found = trial({**given_up, **silence, **({OBJECTIVE: level((objective, 61))} if objective else {})})
    found.firing(30, "ToolHubSilent")
    found.firing(32, "ToolHubSilent", PAGE)
    found.firing(60, "ToolHubSilent", PAGE)
    found.firing(60, "ToolHubDown")
    found.run()


def test_silent_needs_requests(trial: Make) -> None:
    """A hub that did not answer once and is not asked any more pages nobody."""
    silence = {name: values for name, values in age([60.0 * n for n in range(40)]).items() if "inflight" not in name}
    found = trial({**silence, **requests(level((1, 40)), "abandoned")})
    found.firing(20, "ToolHubSilent")
    found.run()


def test_silent_is_the_word_of_processes_that_ask(trial: Make) -> None:
    """A replica that was given up on once and asks no more does not page while another one is answered."""
    idle = {name: values for name, values in age([60.0 * n for n in range(90)]).items() if "inflight" not in name}
    idle |= requests([None, *level((1, 89))], "abandoned")
    well = {name.replace("a:9464", "b:9464"): values for name, values in age(level((0, 90))).items()}
    well |= requests(grow((4, 89)), labels=RUBE.replace("a:9464", "b:9464"))
    found = trial({**idle, **well})
    for minute in (20, 60, 88):
        found.firing(minute, "ToolHubSilent")
    found.run()


@pytest.mark.parametrize(("objective", "seconds", "fires"), [(None, 16, True), (10.0, 29, False), (10.0, 31, True)])
def test_silent_gives_a_slow_hub_more_time(trial: Make, objective: float | None, seconds: float, fires: bool) -> None:
    """A hub is silent after 15 s, or after three times its objective if that is longer."""
    found = trial({**age(level((seconds, 3))), **({OBJECTIVE: level((objective, 3))} if objective else {})})
    found.firing(2, "ToolHubSilent", *([PAGE] if fires else []))
    found.run()


def test_silent_names_one_hub(trial: Make) -> None:
    """A silent hub is named although another hub answers; processes of one service see one hub."""
    second = {series.replace("a:9464", "b:9464"): values for series, values in age(level((0, 3))).items()}
    found = trial({**age(level((60, 3))), **second, **age(level((1, 3)), hub="git")})
    found.firing(2, "ToolHubSilent", PAGE)
    found.run()


def test_failing_fires_and_resolves(trial: Make) -> None:
    """The alert fires while half of the round trips fail, and resolves afterwards."""
    found = trial(
        {
            **requests(grow((10, 20), (5, 10), (10, 20))),
            **requests(late(20, grow((5, 10), (0, 20))), "timeout", "timeout"),
        }
    )
    found.firing(19, "ToolHubFailing")
    found.firing(26, "ToolHubFailing", PAGE)
    found.firing(40, "ToolHubFailing")
    found.run()


@pytest.mark.parametrize(("failed", "fires"), [(9.9, False), (10.1, True)])
def test_failing_at_the_boundary(trial: Make, failed: float, fires: bool) -> None:
    """The alert begins at a tenth of failures: 10 of 100 round trips a minute."""
    found = trial(
        {
            **requests(grow((100 - failed, 30))),
            **requests(grow((failed, 30)), "failed", "ConnectionError"),
        }
    )
    found.firing(25, "ToolHubFailing", *([PAGE] if fires else []))
    found.run()


@pytest.mark.parametrize(("failures", "fires"), [(4, False), (5, True)])
def test_failing_needs_several(trial: Make, failures: int, fires: bool) -> None:
    """Five failures page if nothing succeeds, and the one that begins the series counts; four page nobody."""
    found = trial(requests(late(10, level((failures, 6))), "failed", "500"))
    found.firing(10, "ToolHubFailing")
    found.firing(13, "ToolHubFailing", *([PAGE] if fires else []))
    found.firing(15, "ToolHubFailing")
    found.run()


@pytest.mark.parametrize("error", ["backoff", "circuit_open"])
def test_a_hub_that_nobody_asked_does_not_fail(trial: Make, error: str) -> None:
    """Callers who were told to come back later made no round trip, and do not count as failures."""
    found = trial({**lookups(grow((10, 30)), cache="none", error=error), **requests(grow((1, 30)))})
    found.firing(25, "ToolHubFailing")
    found.run()


def last_success(values: Sequence[float | None]) -> dict[str, Sequence[float | None]]:
    """Return when the hub succeeded last; minute 0 is the epoch in trials."""
    return {f"pellucid_tool_discovery_last_success_seconds{{{RUBE}}}": values}


def test_down_fires_and_resolves(trial: Make) -> None:
    """The alert fires while nothing succeeds from minute 5 to minute 30, and resolves afterwards."""
    found = trial(
        {
            **requests(grow((1, 5), (0, 25), (1, 10))),
            **requests(late(6, grow((1, 24), (0, 10), start=1)), "failed", "ConnectionError"),
            **last_success([*(60.0 * n for n in range(6)), *level((300, 25)), *(60.0 * n for n in range(31, 41))]),
        }
    )
    found.firing(14, "ToolHubDown")
    found.firing(18, "ToolHubDown", PAGE)
    found.firing(30, "ToolHubDown", PAGE)
    found.firing(36, "ToolHubDown", PAGE)  # it is kept for 6 min
    found.firing(38, "ToolHubDown")
    found.run()


def test_a_hub_that_is_back_pages_nobody(trial: Make) -> None:
    """A hub that is back pages nobody: the alerts that explain its failures last until these have left the windows."""
    found = trial(
        {
            **requests(grow((1, 5), (0, 25), (1, 20))),
            **requests(late(6, grow((2, 24), (0, 20), start=1)), "timeout", "timeout"),
            f'{OVER}{{{RUBE},pellucid_outcome="timeout",error_type="timeout"}}': late(
                6, grow((2, 24), (0, 20), start=1)
            ),
            **age([*level((0, 6), (29, 25), (0, 20))]),
            **last_success([*(60.0 * n for n in range(6)), *level((300, 25)), *(60.0 * n for n in range(31, 51))]),
        }
    )
    found.firing(30, "ToolHubDown", PAGE)
    found.firing(30, "ToolHubSilent", PAGE)
    pages = 'ALERTS{alertname=~"ToolHubFailing|ToolHubSlow",alertstate="firing",severity="page"}'
    for minute in range(31, 50):
        for source in ("ToolHubDown", "ToolHubSilent"):
            explained = f'ALERTS{{alertname="{source}",alertstate="firing"}}'
            found.value(minute, f"{pages} unless on (job, pellucid_provider_id) {explained}")
    found.firing(40, "ToolHubDown")
    found.firing(40, "ToolHubSilent")
    found.run()


def test_down_although_callers_gave_up(trial: Make) -> None:
    """A hub is down although its callers gave up: abandoned requests are no success of the hub."""
    found = trial(
        {
            **requests(grow((2, 60)), "abandoned"),
            **requests(late(6, grow((1, 54))), "timeout", "timeout"),
            **last_success(level((300, 61))),
        }
    )
    found.firing(14, "ToolHubDown")
    found.firing(18, "ToolHubDown", PAGE)
    found.run()


@pytest.mark.parametrize(("after", "fires"), [(120.0, True), (600.0, False)])
def test_down_after_less_than_is_shipped(trial: Make, tmp_path: Path, after: float, fires: bool) -> None:
    """A threshold below 10 min holds, although the hub succeeded within the last 10 min."""
    found = trial(
        {
            **requests(grow((1, 20), (0, 10))),
            **requests(late(20, grow((2, 10))), "timeout", "timeout"),
            **last_success([*(60.0 * n for n in range(21)), *level((1200, 10))]),
        }
    )
    found.rules = tmp_path / "rules.yml"
    found.rules.write_text(render(Thresholds(hub_down_after=after)))
    found.firing(25, "ToolHubDown", *([PAGE] if fires else []))
    found.run()


def test_down_from_the_start(trial: Make) -> None:
    """A hub that never succeeded since its process began is down after 10 min, also after a restart."""
    found = trial(
        {
            **requests(late(3, grow((1, 20), start=1)), "failed", "ConnectionError"),
            **{name: values for name, values in age(late(3, level((0, 20)))).items() if "unanswered" in name},
        }
    )
    found.firing(12, "ToolHubDown")
    found.firing(15, "ToolHubDown", PAGE)
    found.run()


def test_down_after_a_restart(trial: Make) -> None:
    """A hub is not down after a restart if the process before had a success less than 10 min ago."""
    found = trial(
        {
            **requests([*grow((5, 20)), *grow((5, 20))], "failed", "ConnectionError"),
            **last_success([*([None] * 5), *level((600, 14)), *([None] * 22)]),
        }
    )
    found.firing(19, "ToolHubDown")
    found.run()


def test_down_behind_an_old_catalogue(trial: Make) -> None:
    """A hub behind an old catalogue is down, although `stale_if_error` shows no error to callers."""
    behind = {**lookups(grow((2, 40)), cache="stale"), **requests(grow((2, 40)), "failed", "500")}
    found = trial({**behind, **last_success(level((0, 41)))})
    found.firing(9, "ToolHubDown")
    found.firing(30, "ToolHubDown", PAGE)
    found.run()


@pytest.mark.parametrize(("age", "fires"), [(599, False), (601, True)])
def test_down_at_the_boundary(trial: Make, age: int, fires: bool) -> None:
    """A hub is down once its last success is more than 10 min ago."""
    found = trial(
        {
            **requests(grow((1, 30)), "failed", "ConnectionError"),
            **last_success([60.0 * n - age for n in range(31)]),
        }
    )
    found.firing(25, "ToolHubDown", *([PAGE] if fires else []))
    found.run()


def test_a_hub_that_nobody_asks_is_not_down(trial: Make) -> None:
    """A hub is not down without traffic, with lookups that the cache answers, or with two failures."""
    found = trial(
        {
            **lookups(grow((60, 60)), cache="hit"),
            **requests(grow((0, 40), (1, 2), (0, 18)), "timeout", "timeout"),
            **last_success(level((0, 61))),
        }
    )
    for minute in (30, 45, 59):
        found.firing(minute, "ToolHubDown")
    found.run()


def circuit(values: Sequence[float | None], labels: str) -> dict[str, Sequence[float | None]]:
    """Return the state of a breaker."""
    return {f"pellucid_circuit_state_ratio{{{HERE},{labels}}}": values}


@pytest.mark.parametrize("name", ["pellucid_provider_id", "gen_ai_tool_name", "gen_ai_request_model"])
def test_circuit_open_fires_and_resolves(trial: Make, name: str) -> None:
    """An open circuit of a hub, tool or model fires; probes in between do not resolve it, a closed breaker does."""
    found = trial(circuit(late(2, [2, 2, 1, 2, 2, 0, 0, 0, 0, 0]), f'{name}="rube"'))
    labels = {"job": "shop", name: "rube", **UNASSIGNED, "severity": "ticket"}
    found.firing(2, "ToolHubCircuitOpen")
    for minute in (3, 4, 5, 6):
        found.firing(minute, "ToolHubCircuitOpen", labels)
    found.firing(10, "ToolHubCircuitOpen")
    found.run()


def test_a_probe_alone_is_no_open_circuit(trial: Make) -> None:
    """A half-open circuit alone is no open circuit, and fires no alert."""
    found = trial(circuit(level((0, 3), (1, 10)), 'pellucid_provider_id="rube"'))
    found.firing(12, "ToolHubCircuitOpen")
    found.run()


def changes(values: Sequence[float | None], instance: str = "a:9464") -> dict[str, Sequence[float | None]]:
    """Return how often the catalogue changed, as one process saw it."""
    return {
        f'pellucid_tool_catalog_changes_total{{job="shop",instance="{instance}",pellucid_provider_id="rube"}}': values
    }


@pytest.mark.parametrize(("times", "fires"), [(3, False), (4, True)])
def test_catalog_changing_at_the_boundary(trial: Make, times: int, fires: bool) -> None:
    """Four changes of a catalogue in an hour open a ticket, three do not; it resolves when the hour is over."""
    found = trial(changes(late(70, [*range(1, times + 1), *level((times, 80))])))
    found.firing(75, "ToolCatalogChanging", *([TICKET] if fires else []))
    found.firing(140, "ToolCatalogChanging")
    found.run()


def test_one_tool_that_differs_from_the_lock_is_a_ticket(trial: Make) -> None:
    """One tool that differs from the lock file opens a ticket, until an hour after the last run that met it."""
    name = 'pellucid_tool_definition_changes_total{job="shop",instance="a:9464",pellucid_provider_id="rube"'
    found = trial({f'{name},pellucid_tool_change="changed"}}': late(70, level((1, 80)))})
    for minute, fires in ((69, False), (75, True), (125, True), (140, False)):
        found.firing(minute, "ToolDefinitionsChanged", *([TICKET] if fires else []))
    found.run()


@pytest.mark.parametrize(("times", "fires"), [(3, False), (4, True)])
def test_catalog_changing_is_counted_in_whole_changes(trial: Make, times: int, fires: bool) -> None:
    """Three changes are not taken for four, although `increase` estimates the edges of its window."""
    found = trial(changes([*level((5, 120)), *range(5, 6 + times), *level((5 + times, 40))]))
    found.interval = "40s"
    for minute in (90, 91, 92, 93):
        found.firing(minute, "ToolCatalogChanging", *([TICKET] if fires else []))
    found.run()


def test_one_change_seen_by_many_processes_is_one(trial: Make) -> None:
    """One change that nine processes count is one change, and opens no ticket."""
    series: dict[str, Sequence[float | None]] = {}
    for n in range(9):
        series |= {
            f'up{{job="shop",instance="{n}"}}': level((1, 90)),
            **changes(late(70, level((1, 20))), instance=str(n)),
        }
    found = trial(series)
    found.firing(80, "ToolCatalogChanging")
    found.run()


def cached(seconds: float = 0.25, ttl: float | None = 60.0) -> dict[str, Sequence[float | None]]:
    """Return the facts of a hub with a cache, an objective of 0.2 s, and requests of up to so many seconds."""
    buckets = {bound: grow((60 if bound >= seconds else 0, 100)) for bound in (0.1, 0.2, 0.25, math.inf)}
    listed = {f'{DURATION}_bucket{{{ANSWERED},le="{bound}"}}'.replace("inf", "+Inf"): n for bound, n in buckets.items()}
    lives = {f"pellucid_tool_discovery_ttl_seconds{{{RUBE}}}": level((ttl, 101))} if ttl is not None else {}
    return {**listed, **lives, OBJECTIVE: level((0.2, 101))}


def test_cache_miss_storm_fires_and_resolves(trial: Make) -> None:
    """The alert fires while most lookups miss, and resolves; discoveries of providers without a cache do not count."""
    found = trial(
        {
            **cached(),
            **lookups(grow((20, 30), (1, 30), (20, 40)), cache="hit"),
            **lookups(grow((1, 30), (19, 30), (1, 40)), cache="miss"),
            **lookups(grow((500, 100)), cache="none", labels=RUBE.replace("rube", "git")),
        }
    )
    found.firing(30, "DiscoveryCacheMissStorm")
    found.firing(55, "DiscoveryCacheMissStorm", TICKET)
    found.firing(85, "DiscoveryCacheMissStorm")
    found.run()


@pytest.mark.parametrize(("seconds", "ttl", "fires"), [(0.25, 60.0, True), (0.1, 60.0, False), (0.25, None, False)])
def test_cache_misses_matter_where_a_cache_should_help(
    trial: Make, seconds: float, ttl: float | None, fires: bool
) -> None:
    """Misses alert only where a cache should help: not if the hub is quick, nor if its catalogues are not cached."""
    found = trial({**cached(seconds, ttl), **lookups(grow((20, 40)), cache="miss")})
    found.firing(35, "DiscoveryCacheMissStorm", *([TICKET] if fires else []))
    found.run()


@pytest.mark.parametrize(
    ("hits", "misses", "fires"), [(10.1, 10, False), (9.9, 10, True), (0, 5.9, False), (0, 6.1, True)]
)
def test_cache_miss_storm_at_the_boundary(trial: Make, hits: float, misses: float, fires: bool) -> None:
    """The alert begins at half of the lookups and at 60 misses in 10 min."""
    counts = {**lookups(grow((hits, 40)), cache="hit"), **lookups(grow((misses, 40)), cache="miss")}
    found = trial({**cached(), **counts})
    found.firing(35, "DiscoveryCacheMissStorm", *([TICKET] if fires else []))
    found.run()


def test_failures_are_no_misses(trial: Make) -> None:
    """A hub that fails has no miss storm: failed lookups are no misses."""
    counts = {**lookups(grow((60, 40)), cache="miss", error="timeout"), **lookups(grow((1, 40)), cache="hit")}
    found = trial({**cached(), **counts})
    found.firing(35, "DiscoveryCacheMissStorm")
    found.run()


@pytest.mark.parametrize(("seconds", "fires"), [(0.05, False), (0.25, True)])
def test_a_busy_process_opens_a_ticket(trial: Make, seconds: float, fires: bool) -> None:
    """A process whose event loop resumes its runs late opens a ticket."""
    delay = "pellucid_runtime_wakeup_delay_seconds_bucket"
    buckets = {bound: grow((60 if bound >= seconds else 0, 30)) for bound in (0.025, 0.05, 0.1, 0.25, math.inf)}
    found = trial({f'{delay}{{{HERE},le="{bound}"}}'.replace("inf", "+Inf"): n for bound, n in buckets.items()})
    who = {"job": "shop", "instance": "a:9464", "severity": "ticket"}
    found.firing(25, "AgentProcessBusy", *([who] if fires else []))
    found.run()
