from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pellucid import CapturePolicy
from pellucid.telemetry.capture import mask_secret_shapes
from pellucid.telemetry.content import Capturer
from pellucid.telemetry.sanitize import LEFT_OUT
from pellucid.telemetry.secrets.masking import MASK, mask_text

MARK = "s3cr3t"
"""Part of every secret, and of nothing else."""

words = st.text(st.characters(exclude_characters="\0"), max_size=12)
secrets = st.builds(lambda before, after: f"{before}{MARK}{after}", words, words).filter(
    lambda value: not value.startswith(("${", "{{"))  # placeholders
)
names = st.sampled_from(["password", "credentials", "apiKey", "access_token", "Authorization", "pass", "pin", "dsn"])
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words


def below_names(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return objects with a secret at some depth below a name."""
    hidden = st.recursive(
        secrets, lambda value: st.lists(value, max_size=3) | st.dictionaries(words, value, max_size=3)
    )
    return (
        st.builds(
            lambda name, value: {name: value}, names.filter(lambda name: name not in {"pass", "pin", "dsn"}), hidden
        )
        | st.builds(lambda name, value: {name: value}, names, secrets)
        | st.builds(
            lambda name, value, other: {"name": name, **other, "value": value},
            names.filter(lambda name: len(name) > 4),
            secrets,
            st.fixed_dictionaries({"type": leaves}),
        )
        | st.builds(lambda name, value: [[name, value], ["a", 1]], names.filter(lambda name: len(name) > 4), secrets)
        | st.builds(lambda value: {"note": f"x password={MARK}{len(value)}7"}, words)
        | st.builds(lambda value, other: {"a": value, "b": other}, inner, leaves)
    )


values = st.recursive(
    below_names(leaves),
    lambda inner: (
        st.lists(inner | leaves, min_size=1, max_size=4)
        | st.dictionaries(words, inner, min_size=1, max_size=3)
        | st.builds(lambda value: {"text": json.dumps(value)}, inner)
    ),
    max_leaves=8,
)


def parsed(text: str) -> Any:
    """Return the data of a JSON text, also of JSON in its strings."""
    value = json.loads(text)
    return parsed(value) if isinstance(value, str) else value


Form = tuple[Callable[[Any], str], Callable[[str], Any]]

FORMS: dict[str, Form] = {
    "JSON": (json.dumps, json.loads),
    "JSON with all characters": (lambda value: json.dumps(value, ensure_ascii=False), json.loads),
    "compact": (lambda value: json.dumps(value, separators=(",", ":")), json.loads),
    "indented": (lambda value: json.dumps(value, indent=2), json.loads),
    "JSON in JSON": (lambda value: json.dumps(json.dumps(value)), parsed),
    "JSON thrice": (lambda value: json.dumps(json.dumps(json.dumps(value, indent=1))), parsed),
    "escaped": (lambda value: json.dumps(json.dumps(value))[1:-1], lambda text: parsed(f'"{text}"')),
    "in a field": (
        lambda value: json.dumps({"text": json.dumps(value)}),
        lambda text: json.loads(json.loads(text)["text"]),
    ),
    "several": (
        lambda value: "\n".join([json.dumps(value)] * 3),
        lambda text: [json.loads(line) for line in text.split("\n")],
    ),
    "repr": (repr, ast.literal_eval),
    "repr of JSON": (lambda value: repr(json.dumps(value)), lambda text: json.loads(ast.literal_eval(text))),
    "JSON of a repr": (lambda value: json.dumps(repr(value)), lambda text: ast.literal_eval(json.loads(text))),
    "repr of a repr": (lambda value: repr(repr(value)), lambda text: ast.literal_eval(ast.literal_eval(text))),
}
"""Texts of a value, and how to read them."""


def masked(text: str) -> str:
    """Return a text with its secrets masked."""
    found = mask_secret_shapes((), text)
    assert isinstance(found, str)
    return found


def nested(value: Any, depth: int) -> Any:
    """Return a value inside of objects and lists."""
    for n in range(depth):
        value = {f"k{n}": value, "other": n} if n % 2 else [value, n]
    return value


@pytest.mark.parametrize("form", FORMS)
@given(value=values)
@example(value={"credentials": {"google": {"value": MARK}}})
@example(value={"password": f'"\\{MARK}\\"'})
@example(value={"note": f"token='{MARK}' \"x\\"})
@settings(deadline=None, max_examples=60)
def test_masked_documents_stay_valid_and_keep_no_secret(form: str, value: Any) -> None:
    """A masked document stays readable and has no secret, at any depth."""
    write, read = FORMS[form]
    found = masked(write(value))
    read(found)
    assert MARK not in found


@pytest.mark.parametrize("form", FORMS)
def test_text_is_masked_as_data_is(form: str) -> None:
    """A document in a text is masked like its data."""
    write, read = FORMS[form]
    value = {
        "credentials": {"google": {"value": "X1", "scopes": ["a1", 2, 3.5]}, "n": 7},
        "env": [{"name": "DB_PASSWORD", "secure": 1, "value": "hunter2"}, {"name": "A", "value": "visible"}],
        "headers": [["authorization", "hunter2"], ["accept", "text/html"]],
        "args": ["run", "--token", "hunter2", "--fast"],
        "text": "use sk-abcdefghijklmnop1 or password=hunter2 now",
        "pin": 1234,
        "pass": 3,
        "time_to_first_token": 0.25,
    }
    data = json.loads(str(Capturer(CapturePolicy()).value(value).json))
    read_back = read(masked(write(value)))
    assert (read_back[0] if form == "several" else read_back) == data


@pytest.mark.parametrize("depth", [2, 30, 1000, 10_000])
def test_depth_hides_nothing(depth: int) -> None:
    """A secret in a deeply nested text is masked."""
    opening, closing = '{"credentials": ' + '[{"a": ' * depth, "}]" * depth + "}"
    assert masked(f'{opening}"{MARK}"{closing}') == f'{opening}"{MASK}"{closing}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Result:\n{"credentials": {"a": "x1"}}\nok', 'Result:\n{"credentials": {"a": "[redacted]"}}\nok'),
        ('```json\n{"token": {"a": ["x1"]}}\n```', '```json\n{"token": {"a": ["[redacted]"]}}\n```'),
        ("credentials: {'a': {'b': 'x1'}}, next: 1", "credentials: {'a': {'b': '[redacted]'}}, next: 1"),
        ('{"a": 1}\n{"secret": {"b": 22}}', '{"a": 1}\n{"secret": {"b": "[redacted]"}}'),
        ('[Text(text=\'{"password": {"a": "x1"}}\')]', '[Text(text=\'{"password": {"a": "[redacted]"}}\')]'),
        ('{"p\\u0061ssword": "x1"}', '{"p\\u0061ssword": "[redacted]"}'),
        ('{"a": "\\u0022ghp_abcdefghijklmnop1234"}', '{"a": "\\u0022[redacted]"}'),
        ('{"a": "https:\\/\\/ann:hunter2@h.example"}', '{"a": "https:\\/\\/ann:[redacted]@h.example"}'),
        ('{"a": "password:\\u00a0hunter2"}', '{"a": "password:\\u00a0[redacted]"}'),
        ('{"card": 4111111111111111, "id": 4111111111111111}', '{"card": "[redacted]", "id": 4111111111111111}'),
        ('{"sk-abcdefghijklmnop1": {"token": 1234}}', '{"[redacted]": {"token": "[redacted]"}}'),
        ('{"a": "-----BEGIN PRIVATE KEY-----\\nMIIE", "b": 1}', '{"a": "[redacted]", "b": 1}'),
        (
            '{"password": {"type": "string", "default": "x1"}}',
            '{"password": {"type": "string", "default": "[redacted]"}}',
        ),
        ('{"credentials": {"a": {"b": "hunter2', '{"credentials": {"a": {"b": "[redacted]'),
        ('{"note": "password=hunter2', '{"note": "password=[redacted]'),
        ('{credentials: {google: {value: "hunter2"}}}', "{credentials: [redacted]}"),
    ],
)
def test_what_surrounds_a_secret_stays(text: str, expected: str) -> None:
    """Masking keeps the text around a secret, also in documents that are cut off or have escapes."""
    assert masked(text) == expected
    assert masked(expected) == expected


WORST = [
    *("'", '"', "{", "[", "\\", '{"', "['", '\\"', '{\\"', '["\\', "\"'", '[{"a":', '{"password":{"a":', "(", "[("),
    *(
        "password:",
        "password:[",
        "password: ",
        'password:\\"',
        'pin:{"',
        "\\u0061",
        '{"a":"\\u0061",',
        "\t \xa0",
        '[" ',
    ),
    *("{' ", '"[', "'{'", '\\\\"[', "value{key", '{"name":"password","value":', "[['password',", "--a ", "mysql -p"),
    *("?key=", "identified by '", "bearer token ", 'password "', "4111  ", " -p -a", "--- -BEGIN "),
    *('["sshpass","-p",', '"zip","-P",', "input_value=.", "input_value={'a...b'", "a.", "[],"),
]
"""Parts of texts that look like documents and secrets all the time."""


@pytest.mark.parametrize("piece", WORST)
def test_no_document_takes_long(piece: str) -> None:
    """Twice the text that is nearly a document takes at most twice the work."""
    start = '{"password": "x1"} [value '
    _, once = mask_text(start + piece * (50_000 // len(piece)))
    _, twice = mask_text(start + piece * (100_000 // len(piece)))
    assert twice <= 2.1 * once + 100


@pytest.mark.parametrize(
    "piece",
    ["https://h.example/a ", "sshpass -p $P ", "_.-_.-_.-_.-_.-_.-_.-_.-", "a token of text ", 'key ["\\a", 1] '],
)
def test_short_texts_count(piece: str) -> None:
    """A thousand searches of a short text count as more work than one search of the whole."""
    alone, together = mask_text(piece)[1], mask_text(piece * 1000)[1]
    assert 1000 * alone >= together + 3000


@pytest.mark.parametrize("piece", ["input_value=.", "input_value={'a...b' ", "_.-~"])
def test_places_without_a_secret_count(piece: str) -> None:
    """Places that may have a secret count as work even if they have none."""
    assert mask_text(piece * 1000)[1] >= 1000


@pytest.mark.parametrize("piece", WORST)
def test_work_is_bounded(piece: str) -> None:
    """A text that takes too much work is recorded left out or masked."""
    text = '{"password": "' + MARK + '"} [value ' + piece * (16_000 // len(piece))
    recorded = str(Capturer(CapturePolicy()).value([text] * 5).json)
    assert MARK not in recorded
    assert LEFT_OUT in recorded or MASK in recorded
