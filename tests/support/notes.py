"""A check of the notes of boundaries, which are untyped: a misspelled one is a span without it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pellucid.models import Settings
from pellucid.telemetry.boundary import Boundary
from pellucid.telemetry.phases import INFERENCE, PAYLOADS, RUN, Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

OTHERS: Final = frozenset({"objective", "has_failed"})
"""Notes that are neither attributes nor fields of events or log lines: what code reads with `noted`, or a metric."""

OF_OFFERS: Final = frozenset({"denied", "redefined", "shadowed"})
"""Notes of the offer, which a resumed run makes anew: its `compose_request` span was in the pass before."""

misspelled: Final[list[str]] = []
"""Notes that no phase knows, of the boundaries so far."""


@cache
def known(phase: Phase) -> frozenset[str]:
    """Return the notes that a phase knows: of its span, log line and events."""
    events = (event for event in (phase.started, phase.completed, phase.failed) if event is not None)
    payloads = (name for event in events for name in PAYLOADS[event])
    settings = Settings.__annotations__ if phase.name in {RUN.name, INFERENCE.name} else ()
    offers = OF_OFFERS if phase.name == RUN.name else ()
    return frozenset({*phase.names, *phase.logged, *payloads, *settings, *offers, *OTHERS})


def watch() -> None:
    """Check the notes of all boundaries of this process from here on; what no phase knows is in `misspelled`."""
    start = Boundary.__init__

    def checked(b: Boundary, scope: Any, phase: Phase, target: str, notes: dict[str, Any], *times: Any) -> None:
        _check(phase, notes)
        start(b, scope, phase, target, notes, *times)

    setattr(Boundary, "__init__", checked)  # noqa: B010

    def checking(method: Callable[..., Any]) -> Any:
        def call(b: Boundary, *names: str, **notes: Any) -> Any:
            _check(b._phase, (*names, *notes))
            return method(b, *names, **notes)

        return call

    for name in ("label", "note", "noted"):
        setattr(Boundary, name, checking(getattr(Boundary, name)))


def _check(phase: Phase, notes: Iterable[str]) -> None:
    misspelled.extend(f"{phase.name}: {note}" for note in notes if note not in known(phase))
