"""The `dashboards` subcommand: Grafana dashboards for import or provisioning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid_dashboards.dashboard_files import SHIPPED_UIDS, shipped_dashboards

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid dashboards`."""
    actions = parser.add_subparsers(title="actions", metavar="action", dest="action", required=True)
    export = actions.add_parser("export", help="write the Grafana dashboards as JSON files into a folder")
    export.add_argument("folder", type=Path, metavar="DIR", help="made if it is not there; files in it are replaced")
    for kind, uid in SHIPPED_UIDS.items():
        export.add_argument(f"--{kind}-uid", default=uid, metavar="UID", help=f"data source {kind} (default: {uid})")


def run(options: Namespace) -> int:
    """Write the dashboards and return the exit code.

    Raises:
        ConfigError: the folder is not writable.
    """
    folder: Path = options.folder
    uids = {"prometheus": options.prometheus_uid, "jaeger": options.jaeger_uid}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for uid, dashboard in shipped_dashboards(uids).items():
            file = folder / f"{uid}.json"
            text = json.dumps(dashboard, indent=2, sort_keys=True, ensure_ascii=False)
            file.write_text(f"{text}\n", encoding="utf-8")
            print(file)  # noqa: T201  (a command line tool)
    except OSError as error:
        culprit = error.filename or folder
        raise ConfigError(f"{culprit}: {error.strerror}; name a folder that may be written to") from error
    return 0


COMMAND: Final = Command(
    name="dashboards",
    help="Write the Grafana dashboards of Pellucid.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid dashboards export dashboards",
        "pellucid dashboards export /etc/grafana/dashboards --prometheus-uid metrics --jaeger-uid traces",
    ),
)
