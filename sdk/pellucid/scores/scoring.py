"""Calls scorers: functions that name what they need of a run, and return how good it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature, isawaitable, iscoroutinefunction, signature
from typing import Final, TypeAlias

import anyio

from pellucid.errors import ConfigError, PellucidError
from pellucid.failures import contained, describe, error_type_of
from pellucid.scores.evidence import EVIDENCE, Evidence
from pellucid.scores.scored import Score
from pellucid.scores.threads import in_thread
from pellucid.text import close_to

Scorer: TypeAlias = Callable[..., object]
"""A function, sync or async, of attributes of `Evidence`, named by its parameters.

It returns a bool (1 or 0), a number of at least 0, a label, a `Score`, a list of these, a mapping of names to these, or
None if it does not apply.
"""

SCORER_TIMEOUT: Final = 60.0
"""Seconds that a scorer has."""


def name_of(scorer: Scorer) -> str:
    """Return the name of the scores of a scorer: its `name`, else that of the function or class."""
    named = getattr(scorer, "name", None) or getattr(scorer, "__name__", None)
    return named if isinstance(named, str) else type(scorer).__name__


def check_scorer(scorer: object) -> None:
    """Check that what is given can score.

    Raises:
        ConfigError: it is no function, or has a parameter that is no attribute of `Evidence`.
    """
    if not callable(scorer):
        raise ConfigError(f"scorers: {scorer!r:.200} is not a function; give one of parameters such as `output`")
    for parameter in signature(scorer).parameters.values():
        is_named = parameter.kind in {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
        if parameter.name in EVIDENCE and is_named:
            continue
        is_rest = parameter.kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
        if parameter.default is Parameter.empty and not is_rest:
            hint = close_to(parameter.name, EVIDENCE) or f"It may need {', '.join(EVIDENCE)}."
            raise ConfigError(f"scorer {name_of(scorer)!r}: nothing is known as {parameter.name!r}. {hint}")


async def scores_of(
    scorers: Sequence[Scorer],
    evidence: Evidence,
    within: float = SCORER_TIMEOUT,
    on_scores: Callable[[Sequence[Score]], object] | None = None,
) -> list[Score]:
    """Return the scores of a run, in the order of the scorers.

    A scorer that raises, hangs, or returns what is no score gives a score without a value, with `error_type`.

    Args:
        scorers: Functions, each run once, side by side.
        evidence: Evidence for them.
        within: Seconds that each scorer has. A sync one runs in a thread, which goes on after them.
        on_scores: Called with the scores of each scorer as soon as it has returned.
    """
    found: list[list[Score]] = [[] for _ in scorers]

    async def work(index: int, scorer: Scorer) -> None:
        found[index] = await _scores(scorer, evidence, within)
        if on_scores is not None:
            on_scores(found[index])

    async with anyio.create_task_group() as group:
        for index, scorer in enumerate(scorers):
            group.start_soon(work, index, scorer)
    return [score for scores in found for score in scores]


async def _scores(scorer: Scorer, evidence: Evidence, within: float) -> list[Score]:
    name = name_of(scorer)
    try:
        with anyio.move_on_after(within):
            return list(_read(name, await _call(name, scorer, evidence)))
        error_type, why = "timeout", f"it took longer than {within:g} s"
    except BaseException as error:  # noqa: BLE001  (a score says that there is none; `contained` passes cancellations)
        error_type, why = error_type_of(error), describe(contained(error))
    return [Score(name=name, by=getattr(scorer, "by", name), error_type=error_type, explanation=why)]


def signature_of(*needed: str) -> Signature:
    """Return the signature of a scorer that needs these attributes of `Evidence`."""
    return Signature([Parameter(name, Parameter.KEYWORD_ONLY) for name in dict.fromkeys(needed)])


class NotRecorded(PellucidError):
    """A scorer needs what a recording does not have, or has only a part of."""

    error_type = "content_not_recorded"


def needed_by(scorer: Scorer) -> list[str]:
    """Return the attributes of `Evidence` that a scorer names."""
    return [name for name in signature(scorer).parameters if name in EVIDENCE]


def check_recorded(needed: Collection[str], missing: frozenset[str]) -> None:
    """Check that a recording has what a scorer needs, unless the scorer looks at what is missing itself.

    Raises:
        NotRecorded: it does not.
    """
    if (lacking := missing.intersection(needed)) and "missing" not in needed:
        raise NotRecorded(
            f"{', '.join(sorted(lacking))}: the recording has only a part, or nothing; record with "
            "CapturePolicy('redacted'), the default, and raise its max_bytes if content was cut"
        )


async def _call(name: str, scorer: Scorer, evidence: Evidence) -> object:
    needed = needed_by(scorer)
    check_recorded(needed, evidence.missing)
    call = partial(scorer, **{name: getattr(evidence, name) for name in needed})
    if iscoroutinefunction(scorer) or iscoroutinefunction(getattr(scorer, "__call__", None)):  # noqa: B004
        return await call()  # type: ignore[misc]
    value = await in_thread(name, call)
    return await value if isawaitable(value) else value


def _read(name: str, value: object) -> Iterable[Score]:
    match value:
        case None:
            return
        case Mapping():
            for key, item in value.items():
                yield from _read(str(key), item)
        case list() | tuple():
            for item in value:
                yield from _read(name, item)
        case _:
            yield _score(name, value)


def _score(name: str, value: object) -> Score:
    match value:
        case Score():
            return value
        case bool():
            return Score(name=name, value=float(value), label="pass" if value else "fail", by=name)
        case int() | float():
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"scorer {name!r} returned {value!r}, which is not a number of at least 0")
            return Score(name=name, value=float(value), by=name)
        case str():
            return Score(name=name, label=value, by=name)
    raise TypeError(f"scorer {name!r} returned {type(value).__name__}, which is no score")
