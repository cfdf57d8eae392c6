"""The boundaries of a replay beside those of its tape."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from pellucid import semconv
from pellucid.telemetry.scope import DEADLINE_PASSED
from pellucid.types import JSONValue
from pellucid_replay.naming import Tools, settings
from pellucid_replay.session import Divergence
from pellucid_replay.tape import TapedSpan
from pellucid_replay.taped_run import STOPPED, TapedRun
from pellucid_replay.tracing import ReplayedSpan

_S = TypeVar("_S", TapedSpan, ReplayedSpan)

_COMPARED: Final = {
    semconv.INPUT_DIGEST: "input",
    semconv.CATALOG_DIGEST: "catalogue",
    semconv.REQUEST_DIGEST: "request",
    semconv.SYSTEM_INSTRUCTIONS: "instructions",
    semconv.OUTPUT_DIGEST: "output",
    semconv.OUTCOME: "outcome",
    semconv.ERROR_TYPE: "error",
}
"""Attributes that are compared, with what they stand for."""

_CONTENT: Final = {
    "instructions": (semconv.SYSTEM_INSTRUCTIONS,),
    "input": (semconv.INPUT_MESSAGES, semconv.TOOL_CALL_ARGUMENTS, semconv.INPUT),
    "output": (semconv.OUTPUT_MESSAGES, semconv.TOOL_CALL_RESULT, semconv.OUTPUT),
}
_PARTS_OF_REQUESTS: Final = frozenset({"input", "catalogue", "tools", "policy", "instructions", "settings"})
_ENDS: Final = frozenset({"output", "outcome", "error"})
"""Differences at the end of a boundary, whose cause was inside of it."""

_CALL_PARTS: Final = frozenset({"tool_call", "tool_call_response"})
_AWAITING: Final = "awaiting"


def differences(
    passes: Sequence[TapedRun],
    replayed: Sequence[ReplayedSpan],
    catalogs: Mapping[str, Mapping[str, Any]],
    *,
    has_request: bool = True,
    has_ids: bool = True,
) -> list[Divergence]:
    """Return every difference between the boundaries of recorded and replayed runs, in the order of the recording.

    Boundaries are paired by phase, iteration and target; tool calls by the ids of the calls.

    Args:
        passes: The recorded runs.
        replayed: Spans of the replay.
        catalogs: Catalogues of the replay by digest.
        has_request: Whether whole requests are compared, and settings.
        has_ids: Whether the ids of tool calls are those of the recording. Otherwise they are not compared, nor is what
            contains them, and calls are paired by the names of their tools.
    """
    roots = [span for span in replayed if span.attributes.get(semconv.PHASE) == semconv.RUN and span.parent is None]
    found: list[tuple[int, Divergence]] = []
    tape = passes[0].tape
    sides = (
        Tools([span.attributes for span in tape.spans], tape.catalogs),
        Tools([span.attributes for span in replayed], {**tape.catalogs, **catalogs}),
    )
    options = _Options(has_request=has_request, has_ids=has_ids, sides=sides)
    for number, taped in enumerate(passes):
        found += _of_run(taped, roots[number] if number < len(roots) else None, replayed, options)
    ordered = [divergence for _, divergence in sorted(found, key=lambda item: item[0])]
    explained = {(item.run_id, item.iteration) for item in ordered if item.what in _PARTS_OF_REQUESTS}
    return [
        item
        for item in ordered
        if item.what != "request" or (has_request and has_ids and (item.run_id, item.iteration) not in explained)
    ]


class _Options(NamedTuple):
    """Sides of the comparison, and the tools of both."""

    has_request: bool
    has_ids: bool
    sides: tuple[Tools, Tools]


def _of_run(
    taped: TapedRun, root: ReplayedSpan | None, replayed: Sequence[ReplayedSpan], options: _Options
) -> Iterator[tuple[int, Divergence]]:
    run_id = root.attributes.get(semconv.RUN_ID) if root is not None else None
    own = [span for span in replayed if span.attributes.get(semconv.RUN_ID) == run_id] if root is not None else []
    left = _keyed(taped.spans, has_ids=options.has_ids)
    right = _keyed(own, has_ids=options.has_ids)
    end = min((span.start for span in taped.spans if span.end is None), default=None)
    for key, recorded in left.items():
        twin = right.get(key)
        is_stopped = not taped.is_complete and (
            recorded.outcome in STOPPED or twin is None or twin.attributes.get(semconv.OUTCOME) in STOPPED
        )
        if not is_stopped:
            for item in _between(taped, recorded, twin, options):
                yield (recorded.end or recorded.start) if item.what in _ENDS else recorded.start, item
        nested = taped.nested.get(recorded.span_id)
        if nested is not None and twin is not None:
            inner = next((span for span in replayed if span.parent is twin and _is_run(span)), None)
            if inner is not None:  # a call that the tape answers has no nested run
                yield from _of_run(nested, inner, replayed, options)
    for key, twin in right.items():
        if key not in left and taped.is_complete and end is None:
            yield taped.root.end or 0, _divergence(taped, twin.name, twin.attributes, "boundary", None, "made", None)


def _between(
    taped: TapedRun, recorded: TapedSpan, twin: ReplayedSpan | None, options: _Options
) -> Iterator[Divergence]:
    if twin is None:
        yield _divergence(taped, recorded.name, recorded.attributes, "boundary", "made", None, recorded.span_id)
        return
    if _is_unread(taped, recorded) and twin.attributes.get(semconv.OUTCOME) == semconv.CANCELLED:
        return  # the run ended first, which made no difference
    mine, theirs = settings(recorded.attributes), settings(twin.attributes)
    if options.has_request and mine != theirs:
        yield _divergence(taped, recorded.name, recorded.attributes, "settings", mine, theirs, recorded.span_id)
    for attribute, what in _COMPARED.items():
        one, other = recorded.attributes.get(attribute), twin.attributes.get(attribute)
        if one == other or (what == "output" and _has_no_twin(taped, recorded)):
            continue
        if what in ("outcome", "error") and recorded.error == DEADLINE_PASSED:
            continue  # a replay has no deadline
        left, right = _sides(recorded, twin, what, options)
        is_offer = what == "output" and recorded.phase == semconv.COMPOSE  # whose tools are compared as a catalogue
        if is_offer and _without_tools(left) == _without_tools(right):
            continue
        if not options.has_ids and left is not None and _without_ids(left) == _without_ids(right):
            continue
        word = _word(what, recorded.attributes, twin.attributes)
        left, right = one if left is None else left, other if right is None else right
        yield _divergence(taped, recorded.name, recorded.attributes, word, left, right, recorded.span_id)


def _word(what: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the word for a difference: the tools of a request differ by policy, or otherwise."""
    if what != "catalogue" or one.get(semconv.PHASE) == semconv.DISCOVERY:
        return what
    return "policy" if one.get(semconv.COMPOSE_DENIED) != other.get(semconv.COMPOSE_DENIED) else "tools"


def _sides(recorded: TapedSpan, twin: ReplayedSpan, what: str, options: _Options) -> tuple[JSONValue, JSONValue]:
    """Return the content of both sides; `None` if it is not known of both."""
    if what != "catalogue":
        return _content(recorded.attributes, what), _content(twin.attributes, what)
    one, other = options.sides[0].of(recorded.attributes), options.sides[1].of(twin.attributes)
    return (one, other) if one is not None and other is not None else (None, None)


def _without_tools(value: JSONValue) -> JSONValue:
    return (
        {key: value[key] for key in value if key not in {"tools", "tool_count"}} if isinstance(value, dict) else value
    )


def _is_unread(taped: TapedRun, recorded: TapedSpan) -> bool:
    """Return whether a span is the wait for a result that the model did not get."""
    return recorded.phase == semconv.AWAIT and taped.reader_of(recorded) is None


def _has_no_twin(taped: TapedRun, recorded: TapedSpan) -> bool:
    """Return whether the output of a boundary is another one in a replay: ids of approvals, names that are new."""
    is_new = taped.is_joined and recorded.phase == semconv.COMPOSE
    return is_new or recorded.get(semconv.APPROVAL_OUTCOME) == _AWAITING


def _keyed(spans: Iterable[_S], *, has_ids: bool) -> dict[tuple[Any, ...], _S]:
    """Return spans by phase, iteration, target and number."""
    counts: Counter[tuple[Any, ...]] = Counter()
    keyed: dict[tuple[Any, ...], _S] = {}
    for span in spans:
        attributes = span.attributes
        phase = attributes.get(semconv.PHASE)
        target = attributes.get(semconv.TOOL_CALL_ID) or attributes.get(semconv.PROVIDER_ID)
        if phase == semconv.DISPATCH:
            target = (target if has_ids else None, attributes.get(semconv.TOOL_NAME))
        iteration = attributes.get(semconv.ITERATION) if phase != semconv.AWAIT else None  # that in which it ended
        key: tuple[Any, ...] = (phase, iteration, target)
        counts[key] += 1
        keyed[*key, counts[key]] = span
    return keyed


def _is_run(span: ReplayedSpan) -> bool:
    return span.attributes.get(semconv.PHASE) == semconv.RUN


def _without_ids(value: JSONValue) -> JSONValue:
    if isinstance(value, dict):
        is_call = value.get("type") in _CALL_PARTS
        return {key: _without_ids(item) for key, item in value.items() if not (is_call and key == "id")}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value


def _content(attributes: Mapping[str, Any], what: str) -> JSONValue:
    text = next((attributes[name] for name in _CONTENT.get(what, ()) if name in attributes), None)
    try:
        value: JSONValue = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return text
    return value


def _divergence(
    taped: TapedRun,
    boundary: str,
    attributes: Mapping[str, Any],
    what: str,
    recorded: JSONValue,
    replayed: JSONValue,
    span_id: str | None,
) -> Divergence:
    return Divergence(
        boundary=boundary,
        iteration=attributes.get(semconv.ITERATION),
        what=what,
        recorded=recorded,
        replayed=replayed,
        run_id=taped.root.run_id,
        span_id=span_id,
    )
