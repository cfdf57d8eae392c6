"""Actions on a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import Request

from pellucid_exporters.viewer.sessions import Actions

if TYPE_CHECKING:
    from pellucid.scores import Score, Scored


@dataclass(frozen=True, slots=True)
class Feedback:
    """Actions of readers on a run.

    Attributes:
        actions: Who may.
        record: Records a score in the store that is shown; it may block.
        add: Adds the case of a run, by its id, to a set, and returns the id of the case; None without a set.
        cases: Name of the set.
    """

    actions: Actions
    record: Callable[[Scored, Score], None]
    add: Callable[[str], str] | None = None
    cases: str = ""


def feedback_of(request: Request) -> Feedback | None:
    """Return the feedback that the application takes; None if its pages of runs are read-only."""
    feedback: Feedback | None = request.app.state.feedback
    return feedback


def form_token(request: Request) -> str | None:
    """Return what forms on the page of a run send; None if its reader may do nothing."""
    feedback = feedback_of(request)
    return feedback.actions.form_token(request) if feedback is not None else None
