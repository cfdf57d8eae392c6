"""Two runs side by side: which boundaries differ, and in what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from pellucid import semconv
from pellucid_exporters.stored.alignment import aligned
from pellucid_exporters.stored.content import RunContent
from pellucid_exporters.stored.differences import Difference, Line, compared
from pellucid_exporters.stored.rows import SpanRow
from pellucid_exporters.stored.stops import stop_words

_CALL_PARTS: Final = ("tool_call", "tool_call_response")
_SETTING: Final = "gen_ai.request."
_NO_SETTINGS: Final = frozenset({semconv.REQUEST_MODEL, semconv.REQUEST_STREAM})


@dataclass(frozen=True, slots=True)
class Pair:
    """A boundary of two runs; it is absent from a run that did not get there.

    Attributes:
        iterations: Iteration in the first and the second run.
    """

    name: str
    iterations: tuple[int | None, int | None]
    first: SpanRow | None
    second: SpanRow | None
    differences: Sequence[Difference]

    @property
    def is_different(self) -> bool:
        """True if the boundaries differ."""
        return bool(self.differences) or self.first is None or self.second is None

    @property
    def place(self) -> str:
        """Iteration, or both if they differ; empty for the run itself."""
        numbers = dict.fromkeys(str(number) for number in self.iterations if number is not None)
        return "|".join(numbers)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs compared.

    Attributes:
        pairs: Their boundaries, in the order of the first run.
        caller: Their callers, where these differ: each name with both values.
        stops: Why they returned their results, if these reasons differ.
    """

    pairs: Sequence[Pair]
    caller: Mapping[str, tuple[Any, Any]]
    stops: tuple[str, str] | None

    @property
    def differing(self) -> list[Pair]:
        """The boundaries that differ."""
        return [pair for pair in self.pairs if pair.is_different]


def compare(first: RunContent, second: RunContent) -> Comparison:
    """Compare two runs by what they did; see `aligned`.

    Ids of tool calls are ignored, because they differ in each run. Who called the runs is compared once, not in each
    discovery. A difference that an earlier boundary had in the same words refers to that.
    """
    runs = tuple(next((span for span in each.spans if span.phase == semconv.RUN), None) for each in (first, second))
    found = [runs] if all(runs) else []
    pairs = [_pair(first, left, second, right) for left, right in [*found, *aligned(first.spans, second.spans)]]
    if found and not pairs[0].is_different:
        del pairs[0]
    stops = [_stop(content, run) for content, run in zip((first, second), runs, strict=True)]
    callers = [_caller(content) for content in (first, second)]
    names = dict.fromkeys(name for each in callers for name in each)
    caller = {name: (callers[0].get(name), callers[1].get(name)) for name in names}
    return Comparison(
        pairs=_folded(pairs),
        caller={name: values for name, values in caller.items() if values[0] != values[1]},
        stops=(stops[0], stops[1]) if stops[0] != stops[1] else None,
    )


def _stop(content: RunContent, run: SpanRow | None) -> str:
    configuration = _value(content, run, semconv.AGENT_CONFIGURATION) if run is not None else None
    limits = configuration.get("limits") if _is_object(configuration) else None
    return stop_words(run.attributes, limits if _is_object(limits) else {}) if run is not None else ""


def _pair(first: RunContent, left: SpanRow | None, second: RunContent, right: SpanRow | None) -> Pair:
    present = left or right
    assert present is not None  # aligned() pairs nothing with nothing
    differences: list[Difference] = []
    if left is not None and right is not None:
        for (what, one), (_, other) in zip(_facets(first, left), _facets(second, right), strict=True):
            if one != other and (lines := compared(what, one, other)):
                differences.append(Difference(what, lines))
    iterations = tuple(span.iteration if span is not None else None for span in (left, right))
    return Pair(present.name, (iterations[0], iterations[1]), left, right, differences)


def _folded(pairs: Sequence[Pair]) -> list[Pair]:
    """Return pairs in which each difference is shown once."""
    places: dict[tuple[Line, ...], str] = {}
    folded: list[Pair] = []
    for pair in pairs:
        name = f"[{pair.place}] {pair.name}" if pair.place else pair.name
        shown: list[Difference] = []
        for each in pair.differences:
            place = places.setdefault(tuple(each.lines), f"{name}: {each.what}")
            is_again = place != f"{name}: {each.what}"
            shown.append(Difference(each.what, [("skip", f"as at {place}")]) if is_again else each)
        folded.append(Pair(pair.name, pair.iterations, pair.first, pair.second, shown))
    return folded


def _facets(content: RunContent, span: SpanRow) -> Iterator[tuple[str, Any]]:
    """Yield what two boundaries are compared by."""
    if span.phase == semconv.RUN:
        yield "question", _recorded(content, span, semconv.INPUT_MESSAGES, semconv.INPUT_DIGEST)
        yield "settings", _value(content, span, semconv.AGENT_CONFIGURATION) or {}
        return
    if span.phase == semconv.INFERENCE:
        yield from _of_call(content, span)
    elif span.phase == semconv.DISPATCH:
        yield "arguments", _recorded(content, span, semconv.TOOL_CALL_ARGUMENTS, semconv.INPUT_DIGEST)
        yield "result", _recorded(content, span, semconv.TOOL_CALL_RESULT, semconv.OUTPUT_DIGEST)
    elif span.phase == semconv.DISCOVERY:
        listed = _value(content, span, semconv.INPUT)
        yield "input", _without(listed, {"identity", "iteration"})
        yield "catalogue", content.tools(span) or _digest(span, semconv.CATALOG_DIGEST)
    else:
        yield "tools offered", span.attributes.get(semconv.COMPOSE_TOOLS)
        yield "messages left out", span.attributes.get(semconv.COMPOSE_LEFT_OUT)
        denied = content.denied(span)
        yield "tools denied", denied or {"number": span.attributes.get(semconv.COMPOSE_DENIED) or 0}
    yield "outcome", {"status": span.status, "error": span.error_type, "message": span.error}


def _of_call(content: RunContent, span: SpanRow) -> Iterator[tuple[str, Any]]:
    request = content.request(span)
    messages = [message.message or f"{message.missing} messages not recorded" for message in request.messages]
    settings = {
        name.removeprefix(_SETTING): value
        for name, value in span.attributes.items()
        if name.startswith(_SETTING) and name not in _NO_SETTINGS
    }
    yield "model", span.attributes.get(semconv.REQUEST_MODEL)
    yield "settings", settings
    yield "instructions", _texts(request.instructions.value) if request.instructions is not None else None
    yield "tools", request.offered.definitions
    yield "prompt", _or_digest(messages if request.is_recorded else None, span, semconv.INPUT_DIGEST)
    yield "answer", _recorded(content, span, semconv.OUTPUT_MESSAGES, semconv.OUTPUT_DIGEST)


def _caller(content: RunContent) -> Mapping[str, Any]:
    """Return the identity for which a run asked its providers, as far as it was recorded."""
    for span in content.spans:
        value = _value(content, span, semconv.INPUT) if span.phase == semconv.DISCOVERY else None
        if _is_object(value) and _is_object(identity := value.get("identity")):
            return identity
    return {}


def _without(value: Any, names: set[str]) -> Any:
    return {name: item for name, item in value.items() if name not in names} if _is_object(value) else value


def _texts(parts: Any) -> Any:
    """Return parts that are all text as that text, so that its lines are compared."""
    if isinstance(parts, list) and parts and all(_is_object(part) and part.get("type") == "text" for part in parts):
        return "\n".join(str(part.get("content", "")) for part in parts)
    return parts


def _is_object(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _value(content: RunContent, span: SpanRow, attribute: str) -> Any:
    recorded = content.get(span, attribute)
    return recorded.value if recorded is not None else None


def _recorded(content: RunContent, span: SpanRow, attribute: str, digest: str) -> Any:
    return _or_digest(_value(content, span, attribute), span, digest)


def _or_digest(value: Any, span: SpanRow, digest: str) -> Any:
    """Return the content without ids of calls; its digest, if there is one, if it was not recorded."""
    return _digest(span, digest) if value is None else _without_ids(value)


def _digest(span: SpanRow, name: str) -> Mapping[str, Any] | None:
    """Return what stands for content that is not there: its digest, or nothing if there is none either."""
    return {"digest": span.attributes[name]} if name in span.attributes else None


def _without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        is_call = value.get("type") in _CALL_PARTS
        return {key: _without_ids(item) for key, item in value.items() if not (is_call and key == "id")}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value
