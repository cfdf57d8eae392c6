from __future__ import annotations

import json
from collections import deque
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pellucid import CapturePolicy, Identity, Message, TextPart, ToolCall, ToolResult
from pellucid.messages import ToolDefinition
from pellucid.telemetry import DEFAULT_REDACTORS
from pellucid.telemetry.content import Capturer
from pellucid.telemetry.sanitize import LEFT_OUT, MARGIN, MAX_DEPTH, MAX_ITEMS

SMALL = CapturePolicy(max_bytes=256)

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(), max_size=400)
    | st.sampled_from(["\ud800", "\0" * 300, "é" * 300, "🦊" * 5000, -(10**2000), float("nan"), float("inf")])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=12)
        | st.dictionaries(st.text(st.characters(), max_size=30) | st.integers(), inner, max_size=12)
    ),
    max_leaves=40,
)


def nested(depth: int) -> Any:
    """Return a list that is nested a number of times."""
    value: Any = "bottom"
    for _ in range(depth):
        value = [value]
    return value


def no_constant(name: str) -> None:
    """Refuse constants that Python's parser accepts and JSON does not have."""
    raise AssertionError(f"{name} is no JSON")


def parsed(text: str | None) -> Any:
    """Parse JSON strictly."""
    assert text is not None
    return json.loads(text, parse_constant=no_constant)


def size(text: str | None) -> int:
    """Return the bytes of a text."""
    assert text is not None
    return len(text.encode())


@given(values, st.sampled_from(["full", "redacted"]), st.sampled_from([256, 1024, 32 * 1024]))
@example(nested(100), "redacted", 256)
@example(["\ud800", float("nan")], "redacted", 256)
@example("x" * 10_000_000, "full", 256)
@example({"k" * 100_000: 1}, "full", 256)
@settings(deadline=None)
def test_whatever_is_recorded_is_valid_json_within_its_bound(value: Any, mode: Any, limit: int) -> None:
    """JSON of any shape and size is recorded as valid JSON within its bound, with a stable digest."""
    policy = CapturePolicy(mode, max_bytes=limit)
    recorded = Capturer(policy).value(value)
    parsed(recorded.json)
    assert size(recorded.json) <= limit
    assert recorded.size >= size(recorded.json) or recorded.json == "[]" or "omitted" in str(recorded.json)
    assert Capturer(policy).value(value) == recorded
    assert Capturer(CapturePolicy("metadata", max_bytes=limit)).value(value).json is None


@given(st.lists(st.text(st.characters(), max_size=200), min_size=1, max_size=30), st.sampled_from([256, 1024]))
@settings(deadline=None)
def test_a_conversation_is_valid_json_within_its_bound(texts: list[str], limit: int) -> None:
    """A recorded conversation has the last messages within the bound, and counts those before."""
    messages = [Message("user", text) for text in texts]
    capturer = Capturer(CapturePolicy("full", max_bytes=limit))
    for end in range(1, len(messages) + 1):
        grown = capturer.messages(tuple(messages[:end]))
    whole = Capturer(CapturePolicy("full", max_bytes=limit)).messages(tuple(messages))
    assert grown == whole
    kept = parsed(whole.json)
    assert size(whole.json) <= limit
    assert 1 <= len(kept) == len(messages) - whole.omitted
    answer = Capturer(CapturePolicy("full", max_bytes=limit)).answer(messages[-1], "content_filter")
    assert parsed(answer.json)[0]["finish_reason"] == "content_filter"
    assert size(answer.json) <= limit


def test_sizes_are_bytes() -> None:
    """A size is the number of bytes of the whole text, even if less is recorded."""
    capturer = Capturer(CapturePolicy("full", max_bytes=1024))
    assert capturer.value("é" * 100).size == 202
    assert (
        capturer.messages((Message("user", "é"),)).size
        == len('[{"role":"user","parts":[{"type":"text","content":"é"}]}]') + 2
    )
    assert capturer.value("x" * 100_000).size > 99_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, 2), [1, 2]),
        (deque([1]), [1]),
        ({2, 1, 3}, [1, 2, 3]),
        (b"\xff", "_w=="),
        (Decimal("1.5"), "1.5"),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00Z"),
        (Identity(tenant="a"), {"tenant": "a", "principal": None, "conversation_id": None}),
        (TextPart("x"), {"type": "text", "content": "x"}),
        ({1: None}, {"1": None}),
        ({1: "a", "1": "b"}, {"1": "a", "1 (1)": "b"}),
        (float("nan"), "NaN"),
        (["\ud800", float("-inf")], ["\ud800", "-Infinity"]),
        pytest.param(10**5000, "[a number of 16610 bits]", id="integer"),
        pytest.param(set(range(MAX_ITEMS + 1)), "[a set of 1025 items]", id="set"),
        (test_sizes_are_bytes, "[builtins.function]"),
    ],
)
def test_what_is_no_json_is_turned_into_it(value: Any, expected: Any) -> None:
    """A value that is no JSON is recorded as the nearest JSON, or by the name of its type."""
    assert parsed(Capturer(CapturePolicy("full")).value(value).json) == expected


def test_the_digest_of_a_set_is_the_same_in_every_process() -> None:
    """The digest of a set is the same in every process."""
    recorded = Capturer(CapturePolicy("full")).value({str(number) for number in range(100)})
    assert parsed(recorded.json) == sorted(map(str, range(100)))


def test_depth_and_items_are_bounded() -> None:
    """Content that is nested too deeply or beyond `MAX_ITEMS` is left out and marked or counted."""
    capturer = Capturer(CapturePolicy("full"))
    assert "nested too deeply" in str(capturer.value(nested(MAX_DEPTH + 1)).json)
    assert "bottom" in str(capturer.value(nested(MAX_DEPTH - 1)).json)
    recorded = capturer.value(list(range(MAX_ITEMS + 5)))
    assert len(parsed(recorded.json)) == MAX_ITEMS
    assert recorded.size == size(recorded.json) + 5


@pytest.mark.parametrize(
    "value", [["x" * 900] * 1000, {f"k{n}": [["x" * 9] * 100] for n in range(1000)}, [[0] * 1000] * 1000]
)
def test_no_more_of_a_value_is_read_than_can_be_recorded(value: Any) -> None:
    """Redactors see only a bounded part of a large value, and its recorded size counts the rest."""
    seen = []

    def note(path: Any, leaf: Any) -> Any:
        seen.append(len(str(leaf)) + 2)
        return leaf

    recorded = Capturer(CapturePolicy(redactors=(note,), max_bytes=1024)).value(value)
    assert sum(seen) < 4096
    assert recorded.size > len(value) / 2
    assert size(recorded.json) <= 1024


@pytest.mark.parametrize("key", ["", "k"])
@pytest.mark.parametrize(
    "place", ["token: a, ", "token=,", 'api_key="', "key", "--ab c ", "4111 1111 1111 1111 ", "://a:b@c "]
)
def test_a_value_made_of_secrets_is_examined_up_to_a_bound(place: str, key: str) -> None:
    """A text full of secrets is left out beyond a bounded amount of work."""
    seen: list[str] = []

    def note(path: Any, leaf: Any) -> Any:
        seen.append(leaf)
        return leaf

    text = place * 400
    policy = CapturePolicy(redactors=(*DEFAULT_REDACTORS, note), max_bytes=1024)
    value = {f"{key}{n}": text for n in range(100)} if key else [text] * 100
    recorded = Capturer(policy).value(value)
    assert len(seen) == 1
    assert seen[-1] == LEFT_OUT
    assert recorded.size >= len(text) + 98
    assert Capturer(policy).text(text * 2) == LEFT_OUT


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}\n',
        '{"Key": "Name", "Value": "db"},',
        '{"token": "the", "logprob": -0.25},',
        "https://example.com/a, ",
        "1234 5678 0000 0000 ",
        "DB_PASSWORD=hunter2-hunter2-hu\n",
    ],
)
def test_honest_texts_are_examined_to_their_end(line: str) -> None:
    """Ordinary texts with names, addresses and digits are not left out for the work they take."""
    texts = [line * (1000 // len(line))] * 32
    recorded = Capturer(CapturePolicy()).value(texts)
    assert LEFT_OUT not in str(recorded.json)
    assert len(parsed(recorded.json)) + recorded.omitted == 32


def test_no_part_of_a_message_loses_its_content_alone() -> None:
    """A recorded part of a message with a type always has content."""
    for length in range(60, 140):
        message = {"role": "assistant", "parts": [{"type": "text", "content": "x" * length}] * 30}
        parts = parsed(Capturer(CapturePolicy(max_bytes=1024)).value(message).json)["parts"]
        assert {"type": "text"} not in parts, length


def test_a_long_list_says_how_much_of_it_is_left_out() -> None:
    """A long list keeps whole items from the front, and the others are counted."""
    recorded = Capturer(SMALL).value(["x" * 50] * 1000)
    kept = parsed(recorded.json)
    assert kept == ["x" * 50] * len(kept)
    assert len(kept) + recorded.omitted == 1000


@pytest.mark.parametrize("item", [["x" * 100] * 8, {"text": "x" * 500, "others": ["x" * 100] * 4}])
def test_the_first_item_of_a_list_is_shortened_if_none_fits(item: Any) -> None:
    """A list of large items keeps its first one shortened, and the others are counted."""
    recorded = Capturer(CapturePolicy(max_bytes=640)).value([item] * 3)
    (kept,) = parsed(recorded.json)
    assert "x" * 16 in str(kept)
    assert recorded.omitted == 2


def test_a_long_text_is_cut_and_says_so() -> None:
    """A long text keeps its beginning and the number of missing characters."""
    text = parsed(Capturer(CapturePolicy("full", max_bytes=1024)).value("x" * 2000).json)
    assert text == "x" * 512 + "… [1488 more characters]"


@pytest.mark.parametrize("before", range(0, 40, 3))
def test_a_cut_leaves_no_half_of_a_secret(before: int) -> None:
    """A secret across the cut is masked, in values and in texts of errors."""
    secret = "postgres://app:correct-horse-battery-staple@db/x"
    policy = CapturePolicy(max_bytes=1024)
    in_value = "x" * (512 - before) + secret + "y" * 5000
    in_text = "x" * (1024 - before) + secret + "y" * 5000
    assert "correct" not in str(Capturer(policy).value(in_value).json)
    assert "correct" not in str(Capturer(policy).text(in_text))
    assert len(secret) < MARGIN


def test_redactors_see_every_leaf_with_the_keys_that_lead_to_it() -> None:
    """Redactors get every leaf with the keys that lead to it, and may return another type."""
    seen = []

    def note(path: Any, value: Any) -> Any:
        seen.append(("/".join(path), value))
        return None if value == 2 else value

    policy = CapturePolicy(redactors=(note,))
    assert parsed(Capturer(policy).value({"a": {"b": [1, 2]}, "c": True}).json) == {"a": {"b": [1, None]}, "c": True}
    assert seen == [("a/b", 1), ("a/b", 2), ("c", True)]
    assert Capturer(CapturePolicy(redactors=(lambda path, value: None,))).text("x") is None


def test_full_is_not_redacted() -> None:
    """Mode `full` records secrets unchanged."""
    assert parsed(Capturer(CapturePolicy("full")).value({"password": "hunter2"}).json) == {"password": "hunter2"}


def test_definitions_keep_their_schema_words() -> None:
    """A parameter named `password` stays in a recorded definition, and a secret in its default is masked."""
    schema = {"type": "object", "properties": {"password": {"type": "string", "default": "sk-abcdefghijklmnop"}}}
    definition = ToolDefinition(name="a", description="d", parameters=schema)
    (recorded,) = parsed(Capturer(CapturePolicy()).definitions([definition]).json)
    assert recorded["parameters"]["properties"] == {"password": {"type": "string", "default": "[redacted]"}}


def test_the_digest_is_of_redacted_content() -> None:
    """The digest of a value does not depend on its secrets."""
    capturer = Capturer(CapturePolicy())
    assert capturer.value({"password": "a"}).digest == capturer.value({"password": "b"}).digest
    assert capturer.value({"user": "a"}).digest != capturer.value({"user": "b"}).digest


def test_a_message_is_recorded_once() -> None:
    """A message that was recorded before costs nothing when the conversation goes on."""
    counted: list[Any] = []

    def count(path: Any, value: Any) -> Any:
        counted.append(value)
        return value

    capturer = Capturer(CapturePolicy(redactors=(count,)))
    messages: tuple[Message, ...] = ()
    for number in range(50):
        messages = (*messages, Message("user", str(number)))
        capturer.messages(messages)
    assert sum(value.isdigit() for value in counted) == 50


def test_another_conversation_starts_anew() -> None:
    """Another conversation is recorded as by a fresh capturer."""
    capturer = Capturer(CapturePolicy())
    first, second = Message("user", "first"), Message("user", "second")
    capturer.messages((first, second))
    fresh = Capturer(CapturePolicy())
    assert capturer.messages((second,)) == fresh.messages((second,))


def test_an_answer_has_one_finish_reason() -> None:
    """A recorded answer has one finish reason, even if its message has one too."""
    for message in (Message("assistant", "x"), Message("assistant", "x", "stop")):
        recorded = Capturer(CapturePolicy()).answer(message, "stop").json
        assert str(recorded).count("finish_reason") == 1
        assert parsed(recorded)[0]["finish_reason"] == "stop"


def test_secrets_in_arguments_and_results_are_masked() -> None:
    """Secrets in arguments and results of tool calls are masked."""
    messages = (
        Message("assistant", [ToolCall("login", {"password": "hunter2"}, "c1")]),
        Message("tool", [ToolResult("c1", {"access_token": "hunter2", "n": 1})]),
    )
    text = Capturer(CapturePolicy()).messages(messages).json
    assert "hunter2" not in str(text)
    assert parsed(text)[1]["parts"][0]["response"] == {"access_token": "[redacted]", "n": 1}
