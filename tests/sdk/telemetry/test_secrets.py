from __future__ import annotations

import json
from typing import Any

import pytest

from pellucid import CapturePolicy
from pellucid.telemetry.capture import mask_secret_keys, mask_secret_shapes
from pellucid.telemetry.content import Capturer
from pellucid.telemetry.secrets.masking import MASK
from support.harmless import HARMLESS
from support.secret_shapes import KEYS, NAMED_PLACES, PLACES, TEXTS, named_value, remains


def masked(text: str) -> str:
    """Return a text with its secrets masked, which a second pass does not change."""
    found = mask_secret_shapes((), text)
    assert isinstance(found, str)
    assert mask_secret_shapes((), found) == found
    return found


@pytest.mark.parametrize("place", PLACES)
def test_secrets_are_recognised_by_themselves(place: str) -> None:
    """Tokens of vendors, cards, private keys, addresses and credentials are masked wherever they stand in a text."""
    leaks = []
    for shape in TEXTS:
        found = masked(PLACES[place](shape.text))
        leaks += [(shape.name, found) for hidden in shape.hidden if remains(found, hidden)]
    assert leaks == []


@pytest.mark.parametrize("place", NAMED_PLACES)
def test_secrets_are_recognised_by_their_names(place: str) -> None:
    """Whatever lies under the name of a secret is masked, in data of any notation and in prose."""
    leaks = []
    for key in KEYS:
        value = named_value(key.name)
        found = masked(NAMED_PLACES[place](key.name, value))
        leaks += [(key.name, found)] if remains(found, value) else []
    assert leaks == []


def test_names_of_secrets_are_recognised_in_data() -> None:
    """As keys, beside their value, as the first of a pair and as an option before its value."""
    capturer = Capturer(CapturePolicy())
    for key in KEYS:
        value = named_value(key.name)
        data = [
            {"a": {key.name: [value]}},
            {"name": key.name, "value": value},
            {"headers": [("accept", "x"), (key.name, value)]},
            ["run", f"--{key.name}", value],
        ]
        assert value not in str(capturer.value(data).json), key.name
        assert mask_secret_keys((key.name, "x"), value) == MASK


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("<password>hunter2x</password>", "hunter2x"),
        ("run --password hunter2x --fast", "hunter2x"),
        ('["--api-key", "hunter2x"]', "hunter2x"),
        ("input_value={'name': 'Ann', 'p...ssword': 'hunter2x'}, input_type=dict", "hunter2x"),
        ("input_value={'name': 'Ann', 'city...nter2x'}, input_type=dict", "nter2x"),
        ("input_value={'password': 'hunt...er2x', 'a': 'b'}, input_type=dict", "er2x"),
        ('PASSWORD="""hunter2x\nhunter3x"""', "hunter3x"),
        ('{"password": "hun\\"ter2x", "a": 1}', "ter2x"),
        ('{"body": "{\\"password\\": \\"hun\\\\\\"ter2x\\"}"}', "ter2x"),
        ("{'password': 'hun\"ter2x'}", "ter2x"),
        ("secret: hunter2x; token: hunter3x, next", "hunter3x"),
        ("data[password]=hunter2x", "hunter2x"),
        ("{'api_keys': ['hunter2x', 'hunter3x']}", "hunter3x"),
        ("b'Authorization: Bearer hunter2x'", "hunter2x"),
        ("[(b'authorization', b'hunter2x')]", "hunter2x"),
        ("Cookie: a=hunter2x; b=hunter3x", "hunter3x"),
        ('{"card": 4111111111111111}', "1111"),
        ("4000 4111 1111 1111 1111", "1111 1111 1111 1111"),
        ("\u0130\u0130 password=hunter2x", "hunter2x"),
        ("🦊 sk-abcdefghijklmnop1", "abcdefg"),
        ("password:\N{NO-BREAK SPACE}hunter2x", "hunter2x"),
        ("password\N{THIN SPACE}:\N{IDEOGRAPHIC SPACE}\N{ZERO WIDTH SPACE}hunter2x", "hunter2x"),
        ("Bearer\N{NO-BREAK SPACE}abcdefgh1234", "abcdefgh1234"),
        ("**Password:** hunter2x", "hunter2x"),
        ('Bearer "abcdefgh1234"', "abcdefgh1234"),
        ("Bearer: 'abcdefgh1234'", "abcdefgh1234"),
        ("the bearer token abcdefghijklmnop1234 was refused", "abcdefghijklmnop1234"),
        ("https://maps.example/api?key=abcdefgh1&x=1", "abcdefgh1"),
        ("https://h.example/callback?state=1&code=4/0AbcdEfgh1", "0AbcdEfgh1"),
        ("GET /?session=abcdefghijklmnopqrst", "abcdefghijklmnopqrst"),
        ("ALTER USER ann WITH PASSWORD 'hunter2x';", "hunter2x"),
        ("SET PASSWORD FOR ann = PASSWORD('hunter2x')", "hunter2x"),
        ("CREATE USER ann IDENTIFIED BY 'hunter2x'", "hunter2x"),
        ("CREATE USER ann IDENTIFIED WITH mysql_native_password BY 'hunter2x'", "hunter2x"),
        ("mysql -u ann -phunter2x orders", "hunter2x"),
        ("/usr/bin/mysqldump --single-transaction -p'hunter2x' orders", "hunter2x"),
        ("sshpass -p hunter2x ssh ann@h.example", "hunter2x"),
        ("redis-cli -h cache -a hunter2x ping", "hunter2x"),
        ("docker login -u ann -p hunter2x registry.example", "hunter2x"),
        ("pass=hunter2x", "hunter2x"),
        ("pin: 4711", "4711"),
        ("seed_phrase: legal winner thank year", "winner"),
        ('<input name="password" value="hunter2x">', "hunter2x"),
        ("credentials = Config({'a': {'password': {'b': 'hunter2x'}}})", "hunter2x"),
        ("config: {credentials: {a: {b: hunter2x}}}", "hunter2x"),
    ],
)
def test_nothing_of_a_secret_remains(text: str, hidden: str) -> None:
    """Quotes, escapes, lists and shortened inputs hide no part of a secret."""
    assert hidden not in masked(text)


COMMANDS = [
    ["mysql", "-u", "ann", "-phunter2x", "orders"],
    ["sshpass", "-p", "hunter2x", "ssh", "ann@h.example"],
    ["sudo", "-u", "ann", "/usr/bin/mysqldump", "-phunter2x"],
    ["env", "A=b", "redis-cli", "-a", "hunter2x", "ping"],
    ["docker", "login", "-u", "ann", "-p", "hunter2x", "registry.example"],
    ["docker", "exec", "db", "mysql", "-phunter2x"],
    ["sqlcmd", "-S", "db", "-P=hunter2x"],
    ["sshpass", "-p", "hunter2x"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_passwords_in_the_arguments_of_commands_are_masked(words: list[str]) -> None:
    """In lists and tuples, and in texts of them, also cut off ones; the arguments around a password stay."""
    expected = [MASK if "hunter2x" in word else word for word in words]
    capturer = Capturer(CapturePolicy())
    for data in (words, {"args": words}, [{"run": words, "n": 1}], (*words,)):
        recorded = str(capturer.value(data).json)
        assert json.loads(recorded) == json.loads(json.dumps(data).replace(json.dumps(words), json.dumps(expected)))
    for write in (json.dumps, repr, lambda value: json.dumps({"text": json.dumps({"args": value})})):
        assert masked(write(words)) == write(expected)
    text = json.dumps(words)
    assert "hunter2x" not in masked(text[: text.index("hunter2x") + len("hunter2x")])


@pytest.mark.parametrize(
    "words",
    [
        ["mysql", "-P", "3306", "-p", "orders"],
        ["grep", "-p", "x"],
        ["mkdir", "-p", "a"],
        ["docker", "run", "-p", "8080:80", "web"],
        ["-p", "x", "sshpass"],
        ["sshpass", "-p", "$PASSWORD", "ssh"],
        ["redis-cli", "-h", "cache"],
    ],
    ids=" ".join,
)
def test_other_arguments_of_commands_stay(words: list[str]) -> None:
    """Options of other commands and other options of these, stand-ins, and what is before the command."""
    assert json.loads(str(Capturer(CapturePolicy()).value(words).json)) == words
    for text in (json.dumps(words), repr(words)):
        assert masked(text) == text


def test_harmless_texts_stay_as_they_are() -> None:
    """Of numbers, code, and sentences about secrets at most 1 % is touched, and no number in JSON."""
    touched = [text for text in HARMLESS if masked(text) != text]
    assert len(touched) <= len(HARMLESS) / 100, touched
    assert not [text for text in touched if text.startswith(("{", "["))]


@pytest.mark.parametrize(
    "value",
    [
        {"latitude": 52.520008, "longitude": 13.404954, "points": [4111111111111111, 0.4111111111111111]},
        {"usage": {"input_tokens": 5, "cached_tokens": 2}, "next_page_token": "CAUQAA", "token_count": 3},
        {"schema": {"required": ["password", "email"]}, "primary_key": "id"},
        {"time_to_first_token": 0.2, "timePerOutputToken": 0.1, "first_token": "a", "progress_token": "b", "pass": 3},
        {"has_password": "yes", "is_secret": "no", "access_key_age_days": 3, "authorization_status": "ok", "pin": True},
    ],
)
def test_harmless_data_stays_as_it_is(value: Any) -> None:
    """Numbers, cursors, counts and lists of names are no secrets, as data and as JSON in a text."""
    capturer = Capturer(CapturePolicy())
    assert json.loads(str(capturer.value(value).json)) == value
    assert masked(json.dumps(value)) == json.dumps(value)
