"""The `doctor` subcommand: concurrent checks with timeouts, one line per finding."""

from __future__ import annotations

import logging
import ssl
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pellucid.cli import Command
from pellucid.errors import ConfigError
from pellucid_commands.doctor import configuration, variables
from pellucid_commands.doctor.findings import Check, Finding, Setup, hide_secrets
from pellucid_commands.doctor.frameworks import check_frameworks
from pellucid_commands.doctor.metrics import check_metrics
from pellucid_commands.doctor.otlp import check_otlp
from pellucid_commands.doctor.prometheus import check_prometheus
from pellucid_exporters.options import SIGNALS, Otlp
from pellucid_exporters.urls import is_url, shown
from pellucid_exporters.worker import WorkerThread

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Sequence

CHECKS: Final[Sequence[Check]] = (
    variables.check_names,
    variables.check_values,
    configuration.check_switches,
    configuration.check_otlp_variables,
    configuration.check_exporters,
    configuration.check_capture,
    check_frameworks,
    check_otlp,
    check_metrics,
    check_prometheus,
)
"""Checks in the order of output."""

REQUESTS: Final = 10
"""Maximum number of sequential requests of one check."""
LONGEST: Final = 3600
"""Timeout of one request, in seconds."""


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pellucid doctor`."""
    parser.add_argument("--otlp", metavar="URL", help="collector to check (default: the one in the environment)")
    parser.add_argument("--protocol", choices=("http/protobuf", "grpc"), help="how to speak to the collector of --otlp")
    parser.add_argument(
        "--signal",
        action="append",
        choices=SIGNALS,
        dest="signals",
        help="signal to send to the collector of --otlp; repeatable (default: all three)",
    )
    parser.add_argument("--metrics", metavar="URL", help="/metrics of the application, http://127.0.0.1:9464/metrics")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with the bearer token of /metrics")
    parser.add_argument(
        "--ca", type=Path, metavar="FILE", help="authority of the certificates of the two servers below"
    )
    parser.add_argument("--prometheus", metavar="URL", help="Prometheus to ask, http://localhost:9090")
    parser.add_argument("--timeout", type=float, default=5.0, metavar="SECONDS", help="for each request (default: 5)")


def run(options: Namespace) -> int:
    """Print the findings; return 1 if something is wrong, else 0.

    Raises:
        ConfigError: an option is invalid.
    """
    setup = _setup(options)
    findings = examine(setup)
    for finding in findings:
        print(hide_secrets(finding.line, setup))
    wrong = sum(finding.level == "wrong" for finding in findings)
    print(f"{wrong} problem{'' if wrong == 1 else 's'} found" if wrong else "no problems found")
    return 1 if wrong else 0


def examine(setup: Setup) -> list[Finding]:
    """Run all checks concurrently, and return their findings within a bounded time."""
    disabled = logging.root.manager.disable
    logging.disable(max(disabled, logging.CRITICAL))  # logs of libraries repeat the findings
    try:
        deadline = time.monotonic() + REQUESTS * setup.timeout
        started = [_start(check, setup) for check in CHECKS]
        return [finding for one in started for finding in _end(one, deadline)]
    finally:
        logging.disable(disabled)


@dataclass(frozen=True, slots=True)
class _Started:
    """Check that runs in a background thread.

    Attributes:
        kept: Findings so far.
    """

    name: str
    future: Future[object]
    kept: list[Finding]


def _start(check: Check, setup: Setup) -> _Started:
    workers = WorkerThread(f"pellucid-{check.__name__}")
    kept: list[Finding] = []
    future = workers.run(lambda: kept.extend(check(setup)))
    workers.stop()
    return _Started(check.__name__.removeprefix("check_"), future, kept)


def _end(one: _Started, deadline: float) -> list[Finding]:
    wait([one.future], timeout=max(0.0, deadline - time.monotonic()))
    if not one.future.done():
        return [*one.kept, Finding("wrong", one.name, "this check came to no end", "ask again with a longer --timeout")]
    error = one.future.exception()
    if error is not None:
        text = f"this check failed with {type(error).__name__}: {error}"
        return [*one.kept, Finding("wrong", one.name, text, "report it as a bug")]
    return one.kept


def _setup(options: Namespace) -> Setup:
    if not 0 < options.timeout <= LONGEST:
        raise ConfigError(f"--timeout {options.timeout:g}: must be more than 0 and at most {LONGEST} seconds")
    if options.protocol and not options.otlp:
        raise ConfigError("--protocol says how to speak to --otlp URL; give that too")
    if options.signals and not options.otlp:
        raise ConfigError("--signal says what to send to --otlp URL; give that too")
    for option, example in (("metrics", "http://127.0.0.1:9464/metrics"), ("prometheus", "http://localhost:9090")):
        url = getattr(options, option)
        if url is not None and not is_url(url):
            raise ConfigError(f"--{option} {shown(url)!r} is not a URL; write it like {example}")
    if options.otlp is not None:
        Otlp(endpoint=options.otlp)
    if options.ca is not None:
        _check_authority(options.ca)
    return Setup(
        otlp=options.otlp,
        protocol=options.protocol,
        signals=options.signals or (),
        metrics=options.metrics,
        token=_token(options.token_file),
        ca=str(options.ca) if options.ca is not None else None,
        prometheus=options.prometheus,
        timeout=options.timeout,
    )


def _check_authority(file: Path) -> None:
    try:
        ssl.create_default_context(cafile=file)
    except FileNotFoundError:
        raise ConfigError(f"--ca {file}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"--ca {file}: this is no file of PEM certificates that can be read ({error})") from None


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--token-file {file}: {error}") from None


COMMAND: Final = Command(
    name="doctor",
    help="Check that telemetry is set up and arrives, and say what to change.",
    add_arguments=add_arguments,
    run=run,
    examples=(
        "pellucid doctor",
        "pellucid doctor --otlp http://localhost:4318",
        "pellucid doctor --otlp http://localhost:4317 --protocol grpc --signal traces",
        "pellucid doctor --metrics http://127.0.0.1:9464/metrics --prometheus http://localhost:9090",
    ),
)
