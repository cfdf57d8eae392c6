from __future__ import annotations

from typing import Any

import pytest

from pellucid import CapturePolicy, ConfigError, TelemetryOptions
from pellucid.telemetry.capture import mask_secret_keys, mask_secret_shapes
from pellucid.telemetry.secrets.masking import MASK

OURS = "PELLUCID_CAPTURE"
STANDARD = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the variables of the environment."""
    monkeypatch.delenv(OURS, raising=False)
    monkeypatch.delenv(STANDARD, raising=False)


@pytest.mark.parametrize(
    "key",
    [
        "password",
        "db_password",
        "passwd",
        "passphrase",
        "pwd",
        "secret",
        "client_secret",
        "clientSecret",
        "secrets",
        "Authorization",
        "proxy-authorization",
        "credentials",
        "cookie",
        "Set-Cookie",
        "api_key",
        "apiKey",
        "API-KEY",
        "apikey",
        "OPENAI_API_KEY",
        "openaiApiKey",
        "x-api-key",
        "access_key",
        "privateKey",
        "signing_key",
        "token",
        "access_token",
        "accessToken",
        "bearer",
        "pw",
        "otp",
        "cvv",
        "dsn",
        "mnemonic",
        "seed_phrase",
        "connectionString",
        "JSESSIONID",
    ],
)
@pytest.mark.parametrize("value", ["x", 1, 1.5, True, None])
def test_what_lies_under_a_secret_key_is_masked(key: str, value: object) -> None:
    """Any value below a secret key is masked, however deep it lies."""
    assert mask_secret_keys((key,), value) == MASK
    assert mask_secret_keys(("a", key, "b"), value) == MASK


@pytest.mark.parametrize(
    "key",
    [
        "query",
        "max_tokens",
        "token_count",
        "tokens",
        "keyboard",
        "key",
        "monkey",
        "secretary",
        "author",
        "passenger",
        "",
        "compass",
        "time_to_first_token",
        "timePerOutputToken",
        "first_token",
        "last_token",
        "progress_token",
        "has_password",
        "isSecret",
        "access_key_age_days",
        "authorization_status",
        "session_id",
        "sessionId",
        "shipping",
    ],
)
def test_what_lies_under_other_keys_stays(key: str) -> None:
    """A key that only resembles a secret one does not mask its value."""
    assert mask_secret_keys((key,), "x") == "x"


@pytest.mark.parametrize(
    ("key", "value", "is_masked"),
    [
        ("pin", "4711", True),
        ("cardPin", 4711, True),
        ("pin", True, False),
        ("pass", "hunter2", True),
        ("pass", 12, False),
        ("pass", None, False),
        ("first_pass", "x", False),
    ],
)
def test_short_names_hide_some_types(key: str, value: object, *, is_masked: bool) -> None:
    """`pin` and `pass` do not mask booleans, and `pass` does not mask numbers."""
    assert (mask_secret_keys((key,), value) == MASK) is is_masked


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Bearer abcdefgh12345678", "Bearer [redacted]"),
        ("Authorization: Bearer abcdefgh12345678", "Authorization: [redacted]"),
        ("GET /\r\nauthorization: Token x\r\nHost: a", "GET /\r\nauthorization: [redacted]\r\nHost: a"),
        ("{'Authorization': 'Digest user=a, nonce=b', 'x': 1}", "{'Authorization': '[redacted]', 'x': 1}"),
        ("Set-Cookie: a=hunter2; b=hunter3", "Set-Cookie: [redacted]"),
        ("basic dXNlcjpwYXNz", "basic [redacted]"),
        (f"jwt {JWT}.", "jwt [redacted]."),
        (f"key {PEM} end", "key [redacted] end"),
        ("key -----BEGIN PRIVATE KEY-----\nMIIE", "key [redacted]"),
        ("sk-abcdefghijklmnop", "[redacted]"),
        ("use sk_live_abcdefghijkl now", "use [redacted] now"),
        ("ghp_abcdefghijklmnop1234", "[redacted]"),
        ("AKIAIOSFODNN7EXAMPLE", "[redacted]"),
        ("postgres://app:hunter2@db/x", "postgres://app:[redacted]@db/x"),
        ("redis://:hunter2@db", "redis://:[redacted]@db"),
        ("password=hunter2&x=1", "password=[redacted]&x=1"),
        ('{"api_key": "hunter2"}', '{"api_key": "[redacted]"}'),
        ('{\\"api_key\\": \\"hunter2\\", \\"a\\": 1}', '{\\"api_key\\": \\"[redacted]\\", \\"a\\": 1}'),
        ('{"api_key": "hunter2 hunter3; x", "a": 1}', '{"api_key": "[redacted]", "a": 1}'),
        ('{\\"pwd\\": \\"hunter2, hunter3\\"}', '{\\"pwd\\": \\"[redacted]\\"}'),
        ("password: pa\\ss", "password: [redacted]"),
        ("TOKEN = hunter2", "TOKEN = [redacted]"),
        ("card 4111 1111 1111 1111 ok", "card [redacted] ok"),
        ("İ Password=hunter2 and password=hunter3", "İ Password=[redacted] and password=[redacted]"),
        ("é PASSWORD=hunter2", "é PASSWORD=[redacted]"),
        ("secret=token=hunter2 Bearer abcdefg8", "secret=[redacted] Bearer [redacted]"),
        ("AccessKey: hunter2, private-key: hunter3", "AccessKey: [redacted], private-key: [redacted]"),
        ("xoxb-123456789012-abc rk_live_abcdefghijkl", "[redacted] [redacted]"),
        ("card 4111-1111-1111-1111 ok", "card [redacted] ok"),
        ("5500005555555559", "[redacted]"),
    ],
)
def test_texts_that_look_like_secrets_are_masked(text: str, masked: str) -> None:
    """Text that looks like a secret is masked, the rest stays, and a second pass changes nothing."""
    assert mask_secret_shapes((), text) == masked
    assert mask_secret_shapes((), masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "The bearer of bad news",
        "http://example.com:8080/a@b",
        "user@example.com",
        "4111 1111 1111 1112",
        "1234567890123456",
        "2026-11-21T05:47:13",
        "sk-short",
        "the password is wrong",
        "eyJ is how they begin",
        "a broken: tokenizer: x",
        "monkey: banana, keyboard=qwerty, hockey: puck",
        "task-abcdefghijklmnop and throughghp",
    ],
)
def test_other_texts_stay(text: str) -> None:
    """Text that is no secret is not masked."""
    assert mask_secret_shapes((), text) == text


@pytest.mark.parametrize("value", [1, 4111111111111111, 1.5, True, None])
def test_shapes_are_those_of_texts(value: object) -> None:
    """Only texts are searched for the shapes of secrets."""
    assert mask_secret_shapes((), value) is value


@pytest.mark.parametrize(
    "piece",
    [
        "eyJ-",
        "-----BEGIN ",
        "password ",
        "bearer ",
        "://:",
        "4 ",
        "a:",
        "sk-",
        "token=",
        "-----BEGIN A",
        "token: a, ",
        "://a:b@",
        '"',
        "{",
        "\\",
        "password:",
        "password:[",
        '{"password":',
        "\t \N{NO-BREAK SPACE}",
        " -p",
        "[[",
    ],
)
def test_no_text_takes_long(piece: str) -> None:
    """A text of a megabyte that nearly matches is searched without delay."""
    mask_secret_shapes((), "x://" + piece * (1_000_000 // len(piece)))


# --- policy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({}, "redacted"),
        ({OURS: "full"}, "full"),
        ({OURS: " OFF "}, "off"),
        ({OURS: "metadata", STANDARD: "true"}, "metadata"),
        ({OURS: "", STANDARD: "true"}, "full"),
        ({STANDARD: "SPAN_ONLY"}, "full"),
        ({STANDARD: "SPAN_AND_EVENT"}, "full"),
        ({STANDARD: "false"}, "metadata"),
        ({STANDARD: "NO_CONTENT"}, "metadata"),
        ({STANDARD: ""}, "redacted"),
    ],
)
def test_the_environment_chooses_the_mode(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], mode: str
) -> None:
    """`PELLUCID_CAPTURE` wins over the standard variable, and without either content is redacted."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert CapturePolicy.from_environment().mode == mode


@pytest.mark.parametrize("name", [OURS, STANDARD])
def test_an_unknown_mode_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An unknown mode in the environment is refused."""
    monkeypatch.setenv(name, "everything")
    with pytest.raises(ConfigError, match="everything"):
        CapturePolicy.from_environment()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "some"}, "'some' is unknown"),
        ({"max_bytes": 255}, "at least 256"),
        ({"max_span_bytes": 1000}, "at least max_bytes"),
        ({"redactors": mask_secret_keys}, "must be a sequence"),
        ({"redactors": {mask_secret_keys}}, "must be a sequence"),
        ({"redactors": "mask_secret_keys"}, "must be a sequence"),
        ({"redactors": ""}, "must be a sequence"),
        ({"redactors": None}, "must be a sequence"),
        ({"redactors": [mask_secret_keys, "password"]}, "number 2 is not callable"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    """Wrong options of a policy are refused when it is made, with the name of the option."""
    with pytest.raises(ConfigError, match=message) as refusal:
        CapturePolicy(**options)
    assert next(iter(options)) in str(refusal.value)


@pytest.mark.parametrize(("given", "remedy"), [("metadata", r"CapturePolicy\('metadata'\)"), (5, r"CapturePolicy\(\)")])
def test_what_is_no_policy_is_refused(given: Any, remedy: str) -> None:
    """A mode alone is refused as a policy, with the policy of that mode as the remedy."""
    with pytest.raises(ConfigError, match=rf"^TelemetryOptions\(capture={given!r}\): .* give {remedy}$"):
        TelemetryOptions(capture=given)


def test_a_policy_does_not_change_with_the_list_that_it_was_made_from() -> None:
    """A policy does not change with the list of redactors from which it was made."""
    redactors = [mask_secret_keys, mask_secret_shapes]
    policy = CapturePolicy(redactors=redactors)
    redactors.clear()
    assert policy == CapturePolicy()
    assert hash(policy) == hash(CapturePolicy())
