"""The `view` subcommand: options, and checks of what it requires."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid_commands.serving.numbers import MAX_PORT
from pellucid_exporters.local.options import DEFAULT_PATH

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

NEEDED: Final = ("jinja2", "markdown_it", "starlette", "uvicorn")
HOSTS: Final = ("127.0.0.1", "::1")
JAEGER: Final = "PELLUCID_JAEGER_URL"
GRAFANA: Final = "PELLUCID_GRAFANA_URL"
TOKEN: Final = "PELLUCID_VIEW_TOKEN"  # noqa: S105  (a name)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid view`."""
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[Path(DEFAULT_PATH)],
        metavar="PATH",
        help=f"local stores, or folders of them, shown as one (default: {DEFAULT_PATH})",
    )
    parser.add_argument("--port", type=_port, metavar="N", help="0 for any that is free (default: 4380, or any)")
    parser.add_argument("--host", choices=HOSTS, default=HOSTS[0], help="loopback address (default: %(default)s)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--durable", metavar="URL", help="also show durable runs: sqlite:///path or postgresql://...")
    parser.add_argument(
        "--allow-actions",
        action="store_true",
        help=f"let readers with the printed address score runs, decide, retry and cancel; token: ${TOKEN} or a new one",
    )
    parser.add_argument(
        "--cases", type=Path, metavar="FILE", help="with --allow-actions: the set of cases that runs can be added to"
    )
    parser.add_argument(
        "--jaeger", type=_url, metavar="URL", help=f"link to traces in this Jaeger UI (default: {JAEGER})"
    )
    parser.add_argument(
        "--grafana", type=_url, metavar="URL", help=f"link runs to the dashboards in this Grafana (default: {GRAFANA})"
    )
    parser.add_argument(
        "--images", action="store_true", help="load images of other hosts that recorded messages name, from there"
    )


def run(options: Namespace) -> int:
    """Serve the pages until an interrupt, and return the exit code.

    Raises:
        ConfigError: the extra is not installed, the port is taken, or there is no store; the message names the remedy.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} not installed; run: pip install 'pellucid[view]'")
    if options.cases is not None and not options.cases.parent.is_dir():
        raise ConfigError(f"--cases {options.cases}: there is no folder {options.cases.parent}; make it first")
    if options.cases is not None and not options.allow_actions:
        raise ConfigError("--cases is for the button that adds a run to a set; add --allow-actions")
    from pellucid_commands.view.serving import serve

    actions = None
    if options.allow_actions:
        from pellucid_commands.view.actions import actions_of

        actions = actions_of(os.environ.get(TOKEN))
    durable = None
    if options.durable is not None:
        from pellucid_commands.view.durable import durable_pages

        durable = durable_pages(options.durable, actions)
    return serve(
        options.paths,
        host=options.host,
        port=options.port,
        jaeger=options.jaeger or _from_environment(JAEGER),
        grafana=options.grafana or _from_environment(GRAFANA),
        browser=options.open,
        durable=durable,
        actions=actions,
        cases=options.cases,
        images=options.images,
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_PORT:
        raise ArgumentTypeError(f"{text!r} is not a port from 0 to {MAX_PORT}")
    return int(text)


def _from_environment(name: str) -> str | None:
    text = os.environ.get(name)
    try:
        return _url(text) if text else None
    except ArgumentTypeError as error:
        raise ConfigError(f"{name}: {error}") from None


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_web = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        is_web = False
    if not is_web:
        raise ArgumentTypeError(f"{text!r} is not an address that begins with http:// or https://")
    return text.rstrip("/")


COMMAND: Final = Command(
    name="view",
    help="Show the local store of telemetry in a browser, on this machine only.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid view --open",
        "pellucid view .pellucid/telemetry.db --port 4380 --jaeger http://localhost:16686",
        "pellucid view shop.db billing.db",
        "pellucid view --allow-actions --cases cases.jsonl",
        "pellucid view --durable sqlite:///durable.db --allow-actions",
    ),
)
