"""The `export` subcommand: manifests for Kubernetes."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid_dashboards.dashboard_files import add_data_sources, data_sources, print_files
from pellucid_dashboards.kubernetes.folder import write_folder
from pellucid_dashboards.kubernetes.setup import DASHBOARDS, PARTS, Setup
from pellucid_dashboards.rules.fixed_labels import add_label_option, fixed_labels
from pellucid_exporters.alerting.thresholds import Thresholds
from pellucid_exporters.urls import is_url

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_DEFAULTS: Final = Setup()


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid export`."""
    targets = parser.add_subparsers(title="targets", metavar="kubernetes", dest="target", required=True)
    summary = "write manifests for Kubernetes into a folder, with a kustomization.yaml"
    export = targets.add_parser("kubernetes", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    export.add_argument("folder", type=Path, metavar="DIR", help="made if it is not there; files in it are replaced")
    export.add_argument("--name", type=_name, default=_DEFAULTS.name, help="begins all names (%(default)s)")
    export.add_argument("--namespace", type=_name, metavar="NAME", help="where all goes (default: that of kubectl)")
    export.add_argument("--image", default=_DEFAULTS.image, help="image with Pellucid and the agents (%(default)s)")
    export.add_argument(
        "--part", action="append", choices=PARTS, help="only this part; may be given several times (default: all)"
    )
    export.add_argument(
        "--agent",
        type=_agent,
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="run server and workers of durable runs with this agent; may be given several times",
    )
    export.add_argument(
        "--no-operators",
        action="store_true",
        help="use no resources of Prometheus Operator, OpenTelemetry Operator and KEDA",
    )
    _add_addresses(export)
    export.add_argument(
        "--secret", type=_name, metavar="NAME", help="existing secret of server and workers (default: as --name)"
    )
    export.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a threshold of the rules",
    )
    add_label_option(export)
    export.add_argument(
        "--dashboards", choices=DASHBOARDS, default=_DEFAULTS.dashboards, help="for what finds them (%(default)s)"
    )
    add_data_sources(export)


def _add_addresses(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--prometheus", default=_DEFAULTS.prometheus, metavar="URL", help="for the relay and KEDA (%(default)s)"
    )
    parser.add_argument(
        "--alertmanager", default=_DEFAULTS.alertmanager, metavar="URL", help="gets the relay's alerts (%(default)s)"
    )
    parser.add_argument("--traces", default=_DEFAULTS.traces, metavar="URL", help="Jaeger, for browsers (%(default)s)")
    parser.add_argument(
        "--traces-endpoint",
        type=_endpoint,
        default=_DEFAULTS.traces_endpoint,
        metavar="HOST:PORT",
        help="takes spans by OTLP over gRPC (%(default)s)",
    )
    parser.add_argument(
        "--metrics-endpoint",
        default=_DEFAULTS.metrics_endpoint,
        metavar="URL",
        help="takes metrics by OTLP over HTTP (%(default)s)",
    )


def run(options: Namespace) -> int:
    """Write the manifests and return the exit code.

    Raises:
        ConfigError: an option is invalid, or the folder is not writable.
    """
    for option in ("prometheus", "alertmanager", "traces", "metrics_endpoint"):
        if not is_url(getattr(options, option)):
            name = option.replace("_", "-")
            raise ConfigError(f"--{name} {getattr(options, option)!r} is not a URL like http://{name}:9090")
    setup = Setup(
        name=options.name,
        namespace=options.namespace,
        image=options.image,
        parts=tuple(options.part or PARTS),
        agents=tuple(options.agent),
        operators=not options.no_operators,
        prometheus=options.prometheus,
        alertmanager=options.alertmanager,
        traces=options.traces,
        traces_endpoint=options.traces_endpoint,
        metrics_endpoint=options.metrics_endpoint,
        secret=options.secret or options.name,
        thresholds=Thresholds().set(options.set),
        alert_labels=fixed_labels(options.label),
        uids=data_sources(options),
        dashboards=options.dashboards,
    )
    print_files(write_folder(setup, options.folder), options.folder)
    return 0


def _name(text: str) -> str:
    """Return a name as Kubernetes takes it, with room for what is put behind it."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?", text):
        raise ArgumentTypeError(f"{text!r} is not a name of up to 30 lower-case letters, digits and hyphens")
    return text


def _agent(text: str) -> str:
    if not re.fullmatch(r"[^\s:]+:[^\s:]+", text):
        raise ArgumentTypeError(f"{text!r} is not MODULE:NAME, such as app.agents:support")
    return text


def _endpoint(text: str) -> str:
    if not re.fullmatch(r"[^\s/]+:[0-9]+", text):
        raise ArgumentTypeError(f"{text!r} is not HOST:PORT, such as jaeger:4317")
    return text


COMMAND: Final = Command(
    name="export",
    help="Export manifests for Kubernetes.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid export kubernetes manifests",
        "pellucid export kubernetes manifests --agent app.agents:support --image registry.example.org/app:1.4",
        "pellucid export kubernetes manifests --part telemetry --set runbook_base=https://wiki.example.org/runbooks.md",
        "pellucid export kubernetes manifests --no-operators --namespace observability",
    ),
)
