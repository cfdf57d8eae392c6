"""Check that a Prometheus scrapes the application, stores its exemplars and native histograms, and has its rules."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias
from urllib.parse import urlencode, urlsplit

from pellucid import semconv
from pellucid.text import excerpt
from pellucid_commands.doctor.addresses import is_far
from pellucid_commands.doctor.findings import Finding, Setup
from pellucid_commands.doctor.web import Trouble, Unreachable, fetch, unreachable
from pellucid_exporters.prometheus.naming import to_name
from pellucid_exporters.urls import shown

About: Final = "Prometheus"
JOB: Final = "pellucid"
"""Job of applications in the shipped scrape configuration."""

DURATION: Final = to_name(semconv.DISCOVERY_DURATION.name, semconv.DISCOVERY_DURATION.unit, "histogram")[0]
OURS: Final = '{__name__=~"pellucid_.+|gen_ai_.+"}'
HOUR: Final = 3600

Ask: TypeAlias = Callable[..., Any]


def check_prometheus(setup: Setup) -> Iterator[Finding]:
    """Query a Prometheus about the application."""
    url = setup.prometheus
    if url is None:
        yield Finding("note", About, "not checked", "--prometheus http://localhost:9090 checks a server")
        return

    def ask(path: str, **parameters: str) -> Any:
        return _ask(url, setup, path, parameters)

    for part in (_version, _targets, _series, _exemplars, _rules, _alertmanagers):
        try:
            yield from part(ask, setup)
        except Unreachable as error:
            yield unreachable(About, url, error.trouble)
            return
        except (KeyError, TypeError, ValueError, AttributeError):
            yield Finding("wrong", About, f"{shown(url)} answers otherwise than a Prometheus", "check the URL")
            return


def _ask(url: str, setup: Setup, path: str, parameters: Mapping[str, str]) -> Any:
    page = fetch(f"{url.rstrip('/')}/api/v1/{path}?{urlencode(parameters)}", setup, accept="application/json")
    if page.status in (401, 403):
        raise Unreachable(Trouble("other", f"answered {page.status}: write credentials into the URL"))
    body = json.loads(page.text)
    if body["status"] != "success":
        raise ValueError(body["status"])
    return body["data"]


def _version(ask: Ask, setup: Setup) -> Iterator[Finding]:
    yield Finding(
        "ok", About, f"{shown(setup.prometheus or '')} is version {excerpt(ask('status/buildinfo')['version'], 40)}"
    )


def _targets(ask: Ask, setup: Setup) -> Iterator[Finding]:
    active = ask("targets", state="active")["activeTargets"]
    jobs = [] if setup.metrics else _jobs(ask, f"last_over_time({OURS}[1h])")
    ours = [target for target in active if _is_ours(target, setup, jobs)]
    if not ours:
        yield _no_target(len(active), setup, jobs)
    for target in ours:
        where = shown(target["scrapeUrl"])
        if target["health"] == "up":
            yield Finding("ok", About, f"target {where} is up")
        elif target["health"] == "unknown":
            yield Finding("note", About, f"target {where} was not scraped yet", "ask again in a moment")
        else:
            yield Finding(
                "wrong", About, f"target {where} is down: {excerpt(target['lastError'])}", "fix the reported error"
            )


def _jobs(ask: Ask, series: str) -> list[str]:
    series_by_job = ask("query", query=f"count by (job) ({series})")["result"]
    return sorted(one["metric"].get("job", "") for one in series_by_job)


def _is_ours(target: Mapping[str, Any], setup: Setup, jobs: Sequence[str]) -> bool:
    if setup.metrics:
        scraped, configured = urlsplit(str(target["scrapeUrl"])), urlsplit(setup.metrics)
        if is_far(setup.metrics):
            return scraped.netloc == configured.netloc.rpartition("@")[2]
        return scraped.port == configured.port  # in a container this machine has another name
    labels: Mapping[str, str] = target["labels"]
    return labels.get("job") in (JOB, *jobs)


def _no_target(active: int, setup: Setup, jobs: Sequence[str]) -> Finding:
    if jobs:
        remedy = "right if applications send them by OTLP, else add these to scrape_configs"
        return Finding("note", About, f"none of its {active} targets has Pellucid's series", remedy)
    address = urlsplit(setup.metrics).netloc.rpartition("@")[2] if setup.metrics else f'job="{JOB}"'
    remedy = "add it to scrape_configs" + ("; if it sends its metrics, ask without --metrics" if setup.metrics else "")
    return Finding("wrong", About, f"none of its {active} targets is {address}", remedy)


def _series(ask: Ask, setup: Setup) -> Iterator[Finding]:
    jobs = _jobs(ask, OURS)
    if not jobs:
        yield Finding("wrong", About, "it has none of Pellucid's series", "run an agent; see the target above")
        return
    yield Finding("ok", About, f"it has Pellucid's series of {', '.join(excerpt(job, 60) for job in jobs)}")
    if ask("query", query=f"histogram_count({DURATION})")["result"]:
        yield Finding("ok", About, "native histograms arrive")
    elif ask("query", query=f"{DURATION}_bucket")["result"]:
        remedy = "docs/exporters/prometheus.md says how to have native ones too"
        yield Finding("note", About, "histograms arrive with classic buckets only, which suffices", remedy)


def _exemplars(ask: Ask, setup: Setup) -> Iterator[Finding]:
    now = time.time()
    exemplars = ask("query_exemplars", query=f'{{__name__=~"{DURATION}.*"}}', start=str(now - HOUR), end=str(now))
    is_on = "exemplar-storage" in ask("status/flags").get("enable-feature", "")
    if exemplars:
        yield Finding("ok", About, "it keeps exemplars")
    elif not is_on:
        yield Finding("wrong", About, "exemplar storage is off", "start it with --enable-feature=exemplar-storage")
    else:
        yield Finding("note", About, "exemplar storage is on, and has none of the last hour's discoveries")


def _rules(ask: Ask, setup: Setup) -> Iterator[Finding]:
    rules = [rule for group in ask("rules")["groups"] for rule in group["rules"]]
    ours = [rule for rule in rules if "pellucid" in rule["query"] or "gen_ai_" in rule["query"]]
    alerts = [rule for rule in ours if rule["type"] == "alerting"]
    if not alerts:
        remedy = "pellucid rules export writes them; name them in rule_files"
        yield Finding("wrong", About, f"none of its {len(rules)} rules is about Pellucid", remedy)
        return
    yield Finding("ok", About, f"{len(ours) - len(alerts)} recording rules and {len(alerts)} alerts are loaded")
    for rule in ours:
        if rule["health"] == "err":
            text = f"rule {excerpt(rule['name'], 80)} fails: {excerpt(rule.get('lastError', ''))}"
            yield Finding("wrong", About, text, "load the rules of this version of Pellucid")
    yield from _firing(alerts)


def _firing(alerts: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    firing = sorted(excerpt(rule["name"], 80) for rule in alerts if rule.get("state") == "firing")
    if firing:
        yield Finding("note", About, f"firing now: {', '.join(firing)}", "see docs/runbooks.md")


def _alertmanagers(ask: Ask, setup: Setup) -> Iterator[Finding]:
    if ask("alertmanagers")["activeAlertmanagers"]:
        yield Finding("ok", About, "it knows an Alertmanager")
    else:
        yield Finding("note", About, "it has no Alertmanager: alerts fire, but nobody is notified", "see alerting:")
