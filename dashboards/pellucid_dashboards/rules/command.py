"""The `rules` subcommand: write the rules with custom thresholds, and check a file of rules with promtool."""

from __future__ import annotations

import math
import shlex
import shutil
import subprocess
from argparse import ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid_dashboards.rules.fixed_labels import add_label_option, fixed_labels
from pellucid_dashboards.rules.render import RULES_FILE, render
from pellucid_exporters.alerting.thresholds import Thresholds

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_NO_PROMTOOL: Final = (
    "promtool is not installed or not on PATH; it comes with Prometheus "
    "(Debian and Ubuntu: apt-get install prometheus; macOS: brew install prometheus; or prometheus.io/download)"
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the actions and options of `pellucid rules`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="export | check | thresholds")
    export = actions.add_parser("export", help="write recording and alerting rules for Prometheus")
    export.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a threshold, such as hanging_after=30; may be given several times (`pellucid rules thresholds`)",
    )
    add_label_option(export)
    export.add_argument("--out", type=Path, metavar="FILE", help="where to (default: standard output)")
    export.add_argument(
        "--for-scale",
        type=_scale,
        default=1.0,
        metavar="FACTOR",
        help="multiply all windows and each `for:`, for drills and tests: at 0.01 an hour is 36 s (default: 1)",
    )
    check = actions.add_parser("check", help="have promtool check a file of rules")
    check.add_argument("file", type=Path, nargs="?", default=RULES_FILE, help="default: the rules as shipped")
    actions.add_parser("thresholds", help="list all thresholds with their values")


def run(options: Namespace) -> int:
    """Run the action and return the exit code.

    Raises:
        ConfigError: an argument is invalid, or promtool is missing; the message names the remedy.
    """
    if options.action == "check":
        return _check(options.file)
    if options.action == "thresholds":
        print("\n".join(Thresholds().lines()))  # noqa: T201  (the output of the command)
        return 0
    return _export(options)


def _export(options: Namespace) -> int:
    thresholds = Thresholds().set(options.set)
    how = "".join(f" --set {shlex.quote(' '.join(each.split()))}" for each in options.set)
    labels = fixed_labels(options.label)
    how += "".join(f" --label {shlex.quote(' '.join(each.split()))}" for each in options.label)
    how += f" --for-scale {options.for_scale:g}" if options.for_scale != 1 else ""
    rules = render(thresholds, scale=options.for_scale, labels=labels, how=how)
    if options.out is None:
        print(rules, end="")  # noqa: T201  (the output of the command)
        return 0
    try:
        options.out.write_text(rules, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {options.out}: {error.strerror}; give --out another path") from None
    return 0


def _check(file: Path) -> int:
    if not file.is_file():
        raise ConfigError(f"there is no file {file}; make one: pellucid rules export --out {file}")
    promtool = shutil.which("promtool")
    if promtool is None:
        raise ConfigError(_NO_PROMTOOL)
    return subprocess.run([promtool, "check", "rules", str(file)], check=False).returncode  # noqa: S603  (a fixed command)


def _scale(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not (math.isfinite(factor) and factor > 0):
        raise ArgumentTypeError(f"{text!r} is not a number greater than 0")
    return factor


COMMAND: Final = Command(
    name="rules",
    help="Export Prometheus rules with thresholds of your own, or check a file of them.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid rules export --out rules.yml",
        "pellucid rules export --set hanging_after=30 --set slow_budget=0.05 > rules.yml",
        "pellucid rules export --label team=payments --out rules.yml",
        "pellucid rules check rules.yml",
        "pellucid rules thresholds",
    ),
)
