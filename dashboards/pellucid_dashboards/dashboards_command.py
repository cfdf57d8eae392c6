"""The `dashboards` subcommand: Grafana dashboards for import, provisioning, or Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.cli import Command
from pellucid_dashboards.dashboard_files import (
    add_data_sources,
    data_sources,
    print_files,
    shipped_dashboards,
    to_json,
)
from pellucid_dashboards.kubernetes.folder import write_folder
from pellucid_dashboards.kubernetes.setup import DASHBOARDS, Setup
from pellucid_dashboards.kubernetes.telemetry import dashboards

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid dashboards`."""
    actions = parser.add_subparsers(title="actions", metavar="export", dest="action", required=True)
    export = actions.add_parser("export", help="write the Grafana dashboards into a folder, a file each")
    export.add_argument("folder", type=Path, metavar="DIR", help="made if it is not there; files in it are replaced")
    export.add_argument(
        "--format",
        choices=("json", *DASHBOARDS),
        default="json",
        help="files of Grafana, or manifests for its sidecar or its operator (%(default)s)",
    )
    add_data_sources(export)


def run(options: Namespace) -> int:
    """Write the dashboards and return the exit code.

    Raises:
        ConfigError: the folder is not writable.
    """
    print_files(_written(options), options.folder)
    return 0


def _written(options: Namespace) -> Iterable[Path]:
    folder: Path = options.folder
    uids = data_sources(options)
    if options.format != "json":
        setup = Setup(uids=uids, dashboards=options.format)
        yield from write_folder(setup, folder, dashboards(setup))
        return
    folder.mkdir(parents=True, exist_ok=True)
    for uid, dashboard in shipped_dashboards(uids).items():
        file = folder / f"{uid}.json"
        file.write_text(to_json(dashboard), encoding="utf-8")
        yield file


COMMAND: Final = Command(
    name="dashboards",
    help="Write the Grafana dashboards of Pellucid.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid dashboards export dashboards",
        "pellucid dashboards export /etc/grafana/dashboards --prometheus-uid mimir --tempo-uid tempo --loki-uid loki",
        "pellucid dashboards export manifests --format grafana-operator",
    ),
)
