"""Actions of `pellucid view --allow-actions`."""

from __future__ import annotations

import getpass
import secrets
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from pellucid.errors import ConfigError
from pellucid.scores.record import record
from pellucid_experiments import add_cases
from pellucid_experiments.recorded_cases import case_of_run
from pellucid_exporters.pipeline import configure
from pellucid_exporters.viewer.feedback import Feedback
from pellucid_exporters.viewer.sessions import Actions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pellucid.scores import Score, Scored
    from pellucid_exporters.stored.reader import Reader
    from pellucid_exporters.telemetry import Telemetry

MIN_TOKEN: Final = 16
"""Characters of a token, at least."""

SERVICE: Final = "pellucid-view"
"""`service.name` of scores that readers give."""


def actions_of(token: str | None) -> Actions:
    """Return the actions for readers with a token, which is new unless given.

    Raises:
        ConfigError: the token is too short.
    """
    token = token or secrets.token_urlsafe()
    if len(token) < MIN_TOKEN:
        raise ConfigError(f"PELLUCID_VIEW_TOKEN has {len(token)} characters; use at least {MIN_TOKEN}")
    return Actions(token, getpass.getuser())


@contextmanager
def feedback_to(store: Path, reader: Reader, actions: Actions, cases: Path | None) -> Iterator[Feedback]:
    """Give what readers may do with a run. Scores go to a store, and wherever `OTEL_*` say; a case, to a set."""
    telemetry = configure(SERVICE, local=store, console=False, set_global=False)
    try:
        add = partial(_add, reader, cases) if cases is not None else None
        yield Feedback(actions, partial(_record, telemetry), add, str(cases or ""))
    finally:
        telemetry.shutdown()


def _record(telemetry: Telemetry, scored: Scored, score: Score) -> None:
    record(scored, score, telemetry)
    telemetry.flush()  # the page is shown next


def _add(reader: Reader, cases: Path, run_id: str) -> str:
    case = case_of_run(reader, run_id)
    add_cases(cases, [case])
    return case.id
