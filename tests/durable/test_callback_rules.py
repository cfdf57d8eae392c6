"""Callbacks: which URLs are called, how messages are signed, and options."""

from __future__ import annotations

import base64
import sys
from typing import Any

import pytest

from pellucid.durable import Callbacks, verify_callback
from pellucid.errors import CallbackRefused, ConfigError, InvalidCallback

OLD, NEW = (f"whsec_{base64.b64encode(letter * 32).decode()}" for letter in (b"o", b"n"))
LOCAL = ["http://127.0.0.1/hooks"]
SECRET = "t0psecret"
PREFIXES = [
    "https://app.example.org/hooks/",
    "https://app.example.org:8443/a%20b",
    "http://localhost/",
    "http://[::1]:9/x",
]


@pytest.mark.parametrize(
    "url",
    [
        "https://app.example.org/hooks",
        "https://app.example.org/hooks/",
        "HTTPS://APP.example.org:443/hooks/a/b?c=/../d",
        "https://app.example.org/hoo%6bs/a;b=c",
        "https://app.example.org:8443/a%20b/c",
        "http://localhost:80/any/path",
        "http://[::1]:9/x/y",
    ],
)
def test_allowed_urls(url: str) -> None:
    """URLs of the same origin below the path of a prefix are allowed, however they are written."""
    Callbacks([NEW], PREFIXES).check(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/hooks",
        "ftp://app.example.org/hooks/a",
        "http://app.example.org/hooks/a",
        "https://app.example.org/hooksa",
        "https://app.example.org/Hooks/a",
        "https://app.example.org/",
        "https://app.example.org:444/hooks/a",
        "https://app.example.org:99999999/hooks/a",
        "https://app.example.org.evil.org/hooks/a",
        "https://evil.org/app.example.org/hooks/a",
        "https://user@app.example.org/hooks/a",
        "https://app.example.org@evil.org/hooks/a",
        "https://app.example.org:443@evil.org/hooks/a",
        "https://evil.org#@app.example.org/hooks/a",
        "https://evil.org\\@app.example.org/hooks/a",
        "https://app.example.org\\hooks\\a",
        "https://app.example.org/hooks/../admin",
        "https://app.example.org/hooks/./a",
        "https://app.example.org/hooks/..;/admin",
        "https://app.example.org/hooks/%2e%2E/admin",
        "https://app.example.org/hooks/.%2e/admin",
        "https://app.example.org/hooks/..%2fadmin",
        "https://app.example.org/hooks/..%5cadmin",
        "https://app.example.org/hooks/%252e%252e/admin",
        "https://app.example.org/hooks/a\n",
        "https://app.example.org/hooks/a b",
        "https://app.example.org/hooks/ä",
        "https://äpp.example.org/hooks/a",
        "https://app.example.org./hooks/a",
        "https://app.example.org/hooks/a#b",
        "https://app.example.org/hooks/a%0d%0ab",
        "https://127.1/hooks",
        "http://2130706433/",
        "http://127.0.0.1/",
        "https://[::1]:9/x/y",
        "https://app.example.org/hooks/" + "a" * 2048,
    ],
)
def test_refused_urls(url: str) -> None:
    """A URL that parsers may read in different ways is refused, and so is one of another host, port or path."""
    with pytest.raises(CallbackRefused) as caught:
        Callbacks([NEW], PREFIXES).check(url)
    assert "admin" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keys": []}, "needs one or more keys"),
        ({"keys": [SECRET]}, "needs one or more keys"),
        ({"keys": [f"whsec_{SECRET}="]}, "needs one or more keys"),
        ({"keys": [b"short"]}, "needs one or more keys"),
        ({"allow": []}, "give the URLs below which callbacks may be"),
        ({"allow": "https://example.org"}, "give a list of URLs"),
        ({"allow": ["http://example.org"]}, "'http://example.org': .* must start with https"),
        ({"allow": ["https://example.org?a=b"]}, "has a query"),
        ({"allow": [f"https://example.org/hooks?key={SECRET}"]}, "'https://example.org/hooks' has a query"),
        ({"allow": [f"https://ann:{SECRET}@example.org/"]}, "'https://example.org/': .* must be an absolute URL"),
        ({"allow": [f"https://ann:x/{SECRET}@example.org/"]}, "it must be an absolute URL"),
        ({"timeout": 0}, "timeout=0.*must be positive"),
        ({"concurrency": float("nan")}, "concurrency=nan.*must be positive"),
    ],
)
def test_options(options: dict[str, Any], text: str) -> None:
    """An option that is not valid is named, without keys, passwords and queries."""
    with pytest.raises(ConfigError, match=text) as caught:
        Callbacks(**{"keys": [NEW], "allow": LOCAL, **options})
    assert SECRET not in str(caught.value)


def test_callbacks_without_httpx2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callbacks without the extra raise an error that says what to install."""
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(ConfigError, match=r"pip install 'pellucid\[server\]'"):
        Callbacks([NEW], LOCAL)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"webhook-id": None}, "webhook-id"),
        ({"webhook-signature": "v1,AAAA v2,é"}, "no signature is by one of the keys"),
        ({"webhook-timestamp": "1"}, "no signature"),
    ],
)
def test_refused_messages(change: dict[str, str | None], text: str) -> None:
    """A message that lacks a header, or whose headers were changed, is refused."""
    sent = {**Callbacks([NEW], LOCAL).sign("msg_1", b"{}"), **change}
    headers = {name: value for name, value in sent.items() if value is not None}
    with pytest.raises(InvalidCallback, match=text):
        verify_callback(b"{}", headers, NEW)


def test_a_message_is_valid_for_its_key_body_and_time() -> None:
    """A message is valid only for its key, its body and its time."""
    headers = Callbacks([NEW], LOCAL).sign("msg_1", b"{}")
    assert verify_callback(b"{}", {name.title(): value for name, value in headers.items()}, OLD, NEW) == {}
    for body, key, tolerance in ((b"{}", OLD, 300), (b"[]", NEW, 300), (b"{}", NEW, -1)):
        with pytest.raises(InvalidCallback):
            verify_callback(body, headers, key, tolerance=tolerance)
