"""The `alerts` subcommand."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid_dashboards.relay.enriching import Relay
from pellucid_dashboards.relay.links import Places
from pellucid_dashboards.relay.server import RelayServer
from pellucid_exporters.urls import is_url

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

PORT: Final = 9095


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid alerts`."""
    actions = parser.add_subparsers(title="actions", metavar="relay", required=True)
    summary = "Stand before Alertmanager: add to each alert that Prometheus sends the link to a trace that shows it."
    relay = actions.add_parser("relay", help=summary, description=summary)
    relay.add_argument(
        "--prometheus", default="http://localhost:9090", metavar="URL", help="has the exemplars (%(default)s)"
    )
    relay.add_argument(
        "--alertmanager",
        action="append",
        metavar="URL",
        help="gets the alerts; once for each (http://localhost:9093)",
    )
    relay.add_argument(
        "--traces", default="http://localhost:16686", metavar="URL", help="Jaeger, for browsers (%(default)s)"
    )
    relay.add_argument(
        "--grafana", default="http://localhost:3000", metavar="URL", help="Grafana, for browsers (%(default)s)"
    )
    relay.add_argument(
        "--viewer", metavar="URL", help="`pellucid view` of those who get alerts, such as http://localhost:4380 (none)"
    )
    for name in ("prometheus", "alertmanager"):
        relay.add_argument(
            f"--{name}-external-url", metavar="URL", help=f"its URL for browsers, if that is not the one of --{name}"
        )
    relay.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    relay.add_argument("--port", type=int, default=PORT, metavar="N", help="port to listen on (%(default)s)")


def run(options: Namespace) -> int:
    """Serve until interrupted.

    Raises:
        ConfigError: a URL is invalid, or the port is in use.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    relay = Relay(
        prometheus=_checked("--prometheus", options.prometheus),
        alertmanagers=[_checked("--alertmanager", url) for url in options.alertmanager or ["http://localhost:9093"]],
        traces=_checked("--traces", options.traces),
        viewer=_checked("--viewer", options.viewer) if options.viewer else None,
    )
    prometheus, alertmanager = options.prometheus_external_url, options.alertmanager_external_url
    places = Places(
        prometheus=_checked("--prometheus-external-url", prometheus or relay.prometheus),
        alertmanager=_checked("--alertmanager-external-url", alertmanager or relay.alertmanagers[0]),
        traces=relay.traces,
        grafana=_checked("--grafana", options.grafana),
    )
    try:
        server = RelayServer((options.host, options.port), relay, places)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"listening on {options.host} --port {options.port} failed: {error}; give another --port or --host"
        ) from error
    with server:
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(f"Relaying alerts from http://{host}:{server.server_port}/api/v2/alerts", flush=True)  # noqa: T201  (a command line tool)
        server.serve_forever()
    return 0


def _checked(option: str, url: str) -> str:
    if not is_url(url):
        raise ConfigError(f"{option} {url!r} is not a URL like http://localhost:9090")
    return url


COMMAND: Final = Command(
    name="alerts",
    help="Give alerts the link to a trace, on their way to Alertmanager.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid alerts relay --alertmanager http://localhost:9093",
        "pellucid alerts relay --prometheus http://prometheus:9090 --traces https://jaeger.example.org --host 0.0.0.0",
    ),
)
