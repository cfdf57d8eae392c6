"""Checks of individual `OTEL_*` and `PELLUCID_*` variables: known names and valid values."""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from pellucid_commands.doctor.findings import Finding, Setup
from pellucid_exporters.variables import KNOWN, OWN, wrong_values

About: Final = "environment"
_OF_OTHERS: Final = ("OTEL_PYTHON_", "OTEL_INSTRUMENTATION_", "OTEL_SEMCONV_", "OTEL_PROPAGATORS", "OTEL_EXPERIMENTAL_")
"""Prefixes of variables that other instrumentation reads."""


def check_names(setup: Setup) -> Iterator[Finding]:
    """Report variables that nothing reads."""
    for name in sorted(os.environ):
        if not name.startswith(("OTEL_", "PELLUCID_")) or name in KNOWN or name.startswith(_OF_OTHERS):
            continue
        close = get_close_matches(name, KNOWN, n=1, cutoff=0.85)
        if close:
            yield Finding("wrong", About, f"{name} is not known", f"did you mean {close[0]}?")
        elif name.startswith("PELLUCID_"):
            yield Finding("wrong", About, f"{name} is not known", f"known: {', '.join(sorted(OWN))}")
        else:
            yield Finding("note", About, f"{name} is read by neither Pellucid nor OpenTelemetry's SDK for Python")


def check_values(setup: Setup) -> Iterator[Finding]:
    """Report invalid values."""
    for name, problem in wrong_values():
        yield Finding("wrong", About, f"{name} {problem}")
