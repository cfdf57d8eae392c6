"""Scorers that need no model. What is not known is no score, or an error: never a pass."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any, Final, Literal, get_args

from pydantic_core import to_jsonable_python

from pellucid.errors import ConfigError
from pellucid.messages import Usage
from pellucid.scores.evidence import SpanFacts, ToolUse
from pellucid.scores.scored import Score
from pellucid.scores.scoring import NotRecorded
from pellucid.semconv.names import (
    COMPLETED,
    COST_USD,
    DISCOVERY,
    HUB_LATE,
    HUB_LISTING,
    HUB_LISTING_SECONDS,
    INFERENCE,
    OUTCOME,
    PHASE,
    PROVIDER_ID,
    USAGE_INPUT_TOKENS,
    USAGE_OUTPUT_TOKENS,
)
from pellucid.telemetry.sanitize import dumps
from pellucid.text import excerpt
from pellucid.types import JSONValue

How = Literal["exact", "contains", "regex"]

_UNKNOWN_OF: Final = "the {} of this run is not known"
_MOST_NAMED: Final = 5


class Named:
    """A scorer with the name of its scores, which calls a function that names what it needs in its parameters."""

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self.name, self._function = name, function
        self.__signature__ = signature(function)

    def __call__(self, **needed: Any) -> object:
        """Score a run."""
        return self._function(**needed)


def verdict(name: str, problem: str | None) -> Score:
    """Return a pass, or a fail that says why. Args: problem: What is wrong; None if nothing is."""
    if problem is None:
        return Score(name=name, value=1, label="pass", by=name)
    return Score(name=name, value=0, label="fail", by=name, explanation=problem)


def tool_called(name: str, arguments: Mapping[str, JSONValue] | None = None, *, score: str | None = None) -> Named:
    """Return a scorer: the model called a tool, with any outcome.

    Args:
        name: Name of the tool.
        arguments: Arguments that a call must have; it may have more.
        score: Name of its scores; `tool_called.` and the name of the tool unless given.
    """
    title = score or f"tool_called.{name}"
    wanted = dict(arguments or {})

    def called(tools: Sequence[ToolUse], missing: frozenset[str]) -> Score:
        calls = [use for use in tools if use.name == name]
        if calls and wanted and "tools" in missing:
            raise NotRecorded("tools: the arguments were not recorded, or only in part")
        if any(_has(use, wanted) for use in calls):
            return verdict(title, None)
        if calls:
            others = "; ".join(excerpt(dumps(use.arguments)) for use in calls[:_MOST_NAMED])
            return verdict(title, f"{name} was not called with {excerpt(dumps(wanted))}, but with {others}")
        return verdict(title, f"{name} was not called; the calls: {_names(tools)}")

    return Named(title, called)


def _has(use: ToolUse, wanted: Mapping[str, JSONValue]) -> bool:
    given = use.arguments if isinstance(use.arguments, dict) else {}
    return all(key in given and given[key] == value for key, value in wanted.items())


def _names(tools: Sequence[ToolUse]) -> str:
    names = [use.name for use in tools]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}" if names else "none"


def tools_in_order(*names: str, score: str | None = None) -> Named:
    """Return a scorer: the model called these tools in this order; others may be between them.

    Args:
        *names: Names of the tools.
        score: Name of its scores; `tools_in_order` unless given.
    """
    if not names:
        raise ConfigError.empty("tools_in_order()", "names", "they say what must be called")
    title = score or "tools_in_order"

    def ordered(tools: Sequence[ToolUse], missing: frozenset[str]) -> Score:
        called = iter([use.name for use in tools])
        lacking = next((name for name in names if name not in called), None)
        if lacking is None:
            return verdict(title, None)
        return verdict(
            title, f"{lacking} was not called at its place in {', '.join(names)}; the calls: {_names(tools)}"
        )

    return Named(title, ordered)


def no_tool_errors(tools: Sequence[ToolUse], missing: frozenset[str]) -> Score:
    """Score: no call of a tool failed. A run without calls passes."""
    failed = [use for use in tools if use.is_error]
    return verdict("no_tool_errors", f"failed: {_names(failed)}" if failed else None)


def answer_matches(
    expected: JSONValue | re.Pattern[str] = None,
    how: How = "exact",
    *,
    casefold: bool = False,
    whitespace: bool = False,
    score: str | None = None,
) -> Named:
    """Return a scorer: the answer is, contains or matches what is expected. A run without an answer fails.

    Args:
        expected: A text, a pattern, or a JSON value, for an agent with an output type; what the case expects unless
            given. Without either, there is no score.
        how: `exact`, `contains`, or `regex`, which is searched for; a compiled pattern is always one.
        casefold: Whether capital and small letters are the same.
        whitespace: Whether differences in white space count.
        score: Name of its scores; `answer_matches` unless given.

    Raises:
        ConfigError: the pattern is invalid, or `how` is none of these.
    """
    title, given = score or "answer_matches", expected
    if how not in get_args(How):
        raise ConfigError(f"answer_matches(how={how!r}): use one of {', '.join(get_args(How))}")
    if isinstance(given, re.Pattern) or (how == "regex" and given is not None):
        given = _pattern(given, casefold=casefold)

    def text_of(value: object) -> str:
        text = value if isinstance(value, str) else dumps(plain(value))
        text = text.casefold() if casefold else text
        return text if whitespace else " ".join(text.split())

    def matches(output: Any, expected: JSONValue, status: str) -> Score | None:
        wanted = given if given is not None else expected
        if wanted is None:
            return None
        if output is None and status != "completed":
            return verdict(title, f"there is no answer: the run has {status}")
        if isinstance(wanted, re.Pattern) or how == "regex":
            pattern = wanted if isinstance(wanted, re.Pattern) else _pattern(wanted, casefold=casefold)
            found = pattern.search(output if isinstance(output, str) else dumps(plain(output))) is not None
            shown = pattern.pattern
        elif how == "contains":
            found, shown = text_of(wanted) in text_of(output), text_of(wanted)
        else:
            both_texts = isinstance(wanted, str) and isinstance(output, str)
            found = text_of(wanted) == text_of(output) if both_texts else plain(output) == wanted
            shown = text_of(wanted)
        return verdict(title, None if found else f"expected {excerpt(shown)!r}, got {excerpt(text_of(output))!r}")

    return Named(title, matches)


def _pattern(wanted: JSONValue | re.Pattern[str], *, casefold: bool) -> re.Pattern[str]:
    if isinstance(wanted, re.Pattern):
        return re.compile(wanted.pattern, wanted.flags | re.IGNORECASE) if casefold else wanted
    try:
        return re.compile(str(wanted), re.IGNORECASE if casefold else 0)
    except re.error as error:
        raise ConfigError(f"answer_matches(): {excerpt(wanted)!r} is no pattern: {error}") from error


def plain(value: object) -> Any:
    """Return a value as JSON-able data."""
    return to_jsonable_python(value, fallback=repr)


def valid_json(schema: Mapping[str, Any] | None = None, *, score: str | None = None) -> Named:
    """Return a scorer: the answer is one JSON value, and fits a schema. A run without an answer fails.

    Args:
        schema: A JSON Schema; none unless given.
        score: Name of its scores; `valid_json` unless given.

    Raises:
        ConfigError: the schema is invalid.
    """
    title = score or "valid_json"
    validator = None
    if schema is not None:
        from pellucid.tools.schema import OutputValidator

        try:
            validator = OutputValidator(dict(schema))
        except ValueError as error:
            raise ConfigError(f"valid_json(): the schema is invalid: {error}") from error

    def valid(output: Any, status: str) -> Score:
        if output is None and status != "completed":
            return verdict(title, f"there is no answer: the run has {status}")
        try:
            value = json.loads(output) if isinstance(output, str) else plain(output)
        except (ValueError, RecursionError) as error:
            return verdict(title, f"no JSON: {error}")
        issues = validator.issues(value) if validator is not None else ()
        return verdict(title, "; ".join(issues) or None)

    return Named(title, valid)


def within(
    *,
    cost: float | None = None,
    seconds: float | None = None,
    iterations: int | None = None,
    tokens: int | None = None,
) -> Named:
    """Return a scorer: a run took no more than this; each limit has a score of its own, such as `within_cost`.

    Args:
        cost: US dollars, those of nested runs included. If a price is unknown, it is an error, `unknown_cost`.
        seconds: Duration.
        iterations: Passes of the loop.
        tokens: Tokens of input and output together, those of nested runs included.

    Raises:
        ConfigError: no limit is given.
    """
    limits = {"cost": cost, "seconds": seconds, "iterations": iterations, "tokens": tokens}
    given = {what: limit for what, limit in limits.items() if limit is not None}
    if not given:
        raise ConfigError(f"within(): give at least one of {', '.join(limits)}")

    def fits(
        usage: Usage, seconds: float | None, iterations: int | None, spans: Sequence[SpanFacts]
    ) -> Mapping[str, Score]:
        taken = {
            "cost": _cost(usage, spans),
            "seconds": seconds,
            "iterations": iterations,
            "tokens": _tokens(usage, spans),
        }
        return {f"within_{what}": _fits(what, taken[what], limit) for what, limit in given.items()}

    return Named("within", fits)


def _fits(what: str, taken: float | None, limit: float) -> Score:
    name = f"within_{what}"
    if taken is None:
        return Score(name=name, by="within", error_type=f"unknown_{what}", explanation=_UNKNOWN_OF.format(what))
    return verdict(name, None if taken <= limit else f"{what}: {taken:,.6g} of {limit:,.6g}")


def _cost(usage: Usage, spans: Sequence[SpanFacts]) -> float | None:
    """Return the cost; None if that of any answer is not known."""
    return usage.cost if all(COST_USD in call.attributes for call in _answered(spans)) else None


def _tokens(usage: Usage, spans: Sequence[SpanFacts]) -> int | None:
    known = all(
        USAGE_INPUT_TOKENS in call.attributes and USAGE_OUTPUT_TOKENS in call.attributes for call in _answered(spans)
    )
    if not known or usage.input_tokens is None or usage.output_tokens is None:
        return None
    return usage.input_tokens + usage.output_tokens


def _answered(spans: Sequence[SpanFacts]) -> Iterator[SpanFacts]:
    for span in spans:
        if span.attributes.get(PHASE) == INFERENCE and span.attributes.get(OUTCOME) == COMPLETED:
            yield span


def no_secret(output: Any, tools: Sequence[ToolUse]) -> Score:
    """Score: no secret is in the answer, or in the arguments of a call of a tool.

    It finds what the capture policy masks: keys and tokens by their form, values under names such as `password`. In a
    recording they are masked, and the mask counts as one.
    """
    places = [("the answer", output), *((f"the arguments of {use.name}", use.arguments) for use in tools)]
    found = dict.fromkeys(place for place, value in places if _has_secret(value))
    return verdict("no_secret", f"a secret is in {', '.join(found)}" if found else None)


def _has_secret(value: object) -> bool:
    from pellucid.telemetry.capture import DEFAULT_REDACTORS
    from pellucid.telemetry.sanitize import Cleaner
    from pellucid.telemetry.secrets.masking import MASK

    given = plain(value)
    written = dumps(given)
    cleaned = dumps(Cleaner(DEFAULT_REDACTORS, max(4 * len(written), 64 * 1024)).clean(given))
    if MASK not in cleaned and cleaned != written:
        raise ValueError("a value is too long, or nested too deeply, to search it for secrets")
    return MASK in cleaned


def hub_objectives_met(spans: Sequence[SpanFacts]) -> Score | None:
    """Score: each hub that declares a latency objective listed its tools within it.

    There is no score if the spans of the run are not known, or no hub that was asked has an objective.
    """
    judged: list[tuple[str, float, bool]] = []
    for span in spans:
        if span.attributes.get(PHASE) != DISCOVERY:
            continue
        for event in span.events:
            facts: Mapping[str, Any] = event.get("attributes") or {}
            if event.get("name") == HUB_LISTING and HUB_LATE in facts:
                is_met = not facts[HUB_LATE] and facts.get(OUTCOME) == COMPLETED
                judged.append((str(facts.get(PROVIDER_ID)), float(facts.get(HUB_LISTING_SECONDS) or 0), is_met))
    if not judged:
        return None
    missed = [f"{hub} took {seconds:.3g} s" for hub, seconds, is_met in judged if not is_met]
    more = f" and {len(missed) - _MOST_NAMED} more" if len(missed) > _MOST_NAMED else ""
    return verdict("hub_objectives_met", f"{', '.join(missed[:_MOST_NAMED])}{more}" if missed else None)
