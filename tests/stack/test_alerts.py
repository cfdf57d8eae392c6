"""Alerts with the rules, windows and routes that are shipped: from a hub that breaks to the page, and to its end."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest

from stack.scene import Jaeger, get_json, until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stack.compose import Stack
    from stack.scene import Application
    from support.prometheus_server import PrometheusServer

pytestmark = [pytest.mark.integration, pytest.mark.stack]

HUB, TOOL, MODEL, AGENT = "pellucid_provider_id", "gen_ai_tool_name", "gen_ai_request_model", "gen_ai_agent_name"

PAGED: Final[Mapping[str, tuple[str, str]]] = {
    "ToolHubSilent": (HUB, "hanging"),
    "ToolHubDown": (HUB, "down"),
    "ToolHubFailing": (HUB, "flaky"),
    "ToolHubSlow": (HUB, "slow"),
    "ModelFailing": (MODEL, "bad-model"),
    "RunFailing": (AGENT, "failing"),
}
"""Alerts that page within ten minutes of trouble, and the label that says whom they are about."""

TICKETS: Final[Mapping[str, tuple[str, str]]] = {
    "ToolHubCircuitOpen": (HUB, "breaker"),
    "ToolCatalogChanging": (HUB, "flapping"),
    "DiscoveryCacheMissStorm": (HUB, "storm"),
    "ToolFailing": (TOOL, "lookup"),
    "ExternalToolFailing": (TOOL, "audit"),
    "ExternalResultsRejected": (TOOL, "count"),
    "DurableWorkersDying": (AGENT, "mortal"),
}
ALERTS: Final = {**PAGED, **TICKETS}
OVER: Final = (*PAGED, "ToolHubCircuitOpen", "DiscoveryCacheMissStorm", "ToolFailing", "ExternalResultsRejected")
"""Alerts that end within minutes; the others look back for half an hour or more."""
FIRES_WITHIN: Final = 900.0
OVER_WITHIN: Final = 1500.0


def firing(stack: Stack, name: str) -> dict[str, Any] | None:
    """Return an alert as Alertmanager has it, if it fires of what the scene breaks."""
    label, value = ALERTS[name]
    found = get_json(stack["alertmanager"].url("/api/v2/alerts"))
    fitting = [each for each in found if each["labels"]["alertname"] == name and each["labels"].get(label) == value]
    return fitting[0] if fitting else None


def printed(stack: Stack, status: str, name: str) -> str:
    """Return what the relay printed of an alert, the receiver of `alertmanager.yml`: its line and those below it."""
    _, value = ALERTS[name]
    log = stack["relay"].log.read_text()
    found = re.findall(
        rf"^\[{status}\] \w+ {name}: (?:Tool hub|Tool|Model|Agent) {re.escape(value)} .*\n(?:    .*\n)*",
        log,
        re.MULTILINE,
    )
    return str(found[-1]) if found else ""


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_fires(stack: Stack, jaeger: Jaeger, name: str) -> None:
    """Each alert is in Alertmanager, with a link to a trace in Jaeger of what it names."""
    until(lambda: firing(stack, name), FIRES_WITHIN, name)

    def linked() -> dict[str, Any] | None:
        alert = firing(stack, name)
        return alert if alert and "trace_url" in alert["annotations"] else None

    alert = until(linked, 180, f"trace of {name}")
    assert alert is not None
    url = alert["annotations"]["trace_url"]
    assert url.startswith(f"{jaeger.url}/trace/")
    with urlopen(url, timeout=60) as page:
        assert page.status == 200
    spans = until(lambda: jaeger.spans(urlsplit(url).path.split("/")[-1]), 60, f"the trace of {name}")
    _, value = ALERTS[name]
    assert any(value in span["name"] for span in spans), [span["name"] for span in spans]


@pytest.mark.usefixtures("broken")
@pytest.mark.parametrize("name", PAGED)
def test_the_page_has_all_that_is_needed(stack: Stack, name: str) -> None:
    """The receiver gets hub, number and objective or limit, with links to a trace, a dashboard, and a runbook."""
    text = until(lambda: printed(stack, "firing", name), FIRES_WITHIN, f"page of {name}")
    first, *links = text.splitlines()
    assert first.startswith("[firing] page ")
    assert re.search(r"\d", first)
    assert [each.split(": ")[0].strip() for each in links] == ["trace", "dashboard", "runbook"]
    url = links[-1].partition(": ")[2]
    with urlopen(url, timeout=60) as answer:
        page = answer.read().decode()
    label, value = ALERTS[name]
    assert parse_qs(urlsplit(url).query)[label] == [value]
    assert f"<title>{name} " in page
    assert value in page


@pytest.mark.usefixtures("broken")
def test_what_explains_keeps_back_what_it_explains(stack: Stack) -> None:
    """Once a hub is known to be down, Alertmanager keeps back the alerts that follow from that."""
    until(lambda: firing(stack, "ToolHubDown"), FIRES_WITHIN, "ToolHubDown")

    def kept_back() -> list[str]:
        found = get_json(stack["alertmanager"].url("/api/v2/alerts"))
        of_hub = [each for each in found if each["labels"].get(HUB) == "down"]
        return [each["labels"]["alertname"] for each in of_hub if each["status"]["state"] == "suppressed"]

    until(lambda: "ToolHubFailing" in kept_back(), FIRES_WITHIN, "inhibited alerts")


def test_nobody_is_told_of_what_is_normal(prometheus: PrometheusServer, broken: Mapping[str, Application]) -> None:
    """No alert has fired of the application that does well."""
    assert prometheus.query('pellucid_compose_duration_seconds{job="normal"}')
    assert prometheus.query('last_over_time(ALERTS{job="normal", alertstate="firing"}[1h])') == []


@pytest.fixture(scope="module")
def healed(stack: Stack, broken: dict[str, Application]) -> None:
    """Let everything go well again, once all alerts have fired."""
    for name in ALERTS:
        until(partial(firing, stack, name), FIRES_WITHIN, name)
    for name in ("hubs", "work", "durable"):
        broken[name].order("heal")


@pytest.mark.usefixtures("healed")
@pytest.mark.parametrize("name", OVER)
def test_an_alert_is_over(stack: Stack, name: str) -> None:
    """The receiver is told when an alert is over."""
    until(lambda: printed(stack, "resolved", name), OVER_WITHIN, f"end of {name}")
