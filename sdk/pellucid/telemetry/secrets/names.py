"""Names of secrets: `password`, `api_key`, `accessToken`, `DB_PASS`.

A name is split into words at any separator. To recognise another name, add its word to one of the sets below.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, TypeAlias

WORDS: Final = {
    # substring, and the start of a name with it where the substring is part of many other words
    "pass": "",
    "pw": "",
    "secret": "",
    "token": "",
    "key": "",
    "authorization": "",
    "bearer": "",
    "cookie": "",
    "cred": "",
    "sess": r"sess(?:ion_?)?(?:id)?(?![a-z])",
    "pin": "pin(?![a-z])",
    "otp": "otp(?![a-z])",
    "cv": "cv[cv]",
    "dsn": "dsn(?![a-z])",
    "phrase": "",
    "mnemonic": "",
    "connect": r"connect(?:\.sid|ion[_-]?str)",
}
"""Substrings, in lower case, of which every name of a secret contains at least one."""

_SECRETS: Final = (
    "password", "passwords", "passwd", "passphrase", "passphrases", "passcode", "pwd", "secret", "secrets",
    "authorization", "credential", "credentials", "creds", "cookie", "cookies",
    "apikey", "apikeys", "accesskey", "accesskeys", "privatekey", "privatekeys", "signingkey", "secretkey",
    "accountkey", "connectionstring", "connectionstrings", "seedphrase", "recoveryphrase", "mnemonic",
)  # fmt: skip
"""Words that name a secret, also at the end of a longer word (`dbpassword`)."""

_KEYS: Final = (
    "access", "account", "api", "app", "auth", "client", "consumer", "deploy", "decryption", "encryption", "functions",
    "hmac", "jwt", "license", "master", "private", "root", "rsa", "secret", "service", "session", "shared", "signing",
    "ssh", "storage", "subscription", "webhook",
)  # fmt: skip
"""Words before a `key` that names a secret. After others, such as `primary` and `cache`, it is not."""

_TOKENS: Final = frozenset({"access", "api", "auth", "bearer", "bot", "id", "oauth", "personal", "refresh", "secret"})
"""Words before a final `tokens` that names secrets; on its own, `tokens` is a unit of text."""

_NOT_TOKENS: Final = frozenset(
    {"bos", "cancel", "completion", "continuation", "end", "eos", "first", "input", "last", "mask", "next", "output"}
    | {"pad", "page", "per", "previous", "progress", "prompt", "sep", "special", "start", "stop", "unk"}
)
"""Words before a final `token` that does not name a secret but a cursor, a price, a time or a piece of text."""

_PASSES: Final = frozenset(
    {"admin", "database", "db", "ftp", "ldap", "login", "mail", "mysql", "pg", "postgres", "proxy", "redis", "root"}
    | {"smtp", "ssh", "ssl", "sudo", "user"}
)
"""Words before a final `pass` that names a password."""

_LAST: Final = frozenset({"cvc", "cvv", "dsn", "otp", "pw", "sessionid", "totp"})
"""Final words that name a secret."""

_SESSIONS: Final = ("sessid", "jsessionid", "aspnetsessionid", "connectsid", "laravelsession")
"""Ends of the names of session cookies, without separators."""

_ENDS: Final = (*_SECRETS, *_SESSIONS)

_ABOUT: Final = frozenset(
    {"age", "arn", "at", "banner", "budget", "consent", "count", "counts", "days", "domain", "enabled", "endpoint"}
    | {
        "expired",
        "expires",
        "expiry",
        "file",
        "format",
        "hint",
        "hours",
        "length",
        "limit",
        "method",
        "minutes",
        "name",
    }
    | {"names", "path", "policy", "required", "rotation", "seconds", "size", "state", "status", "stdin", "strength"}
    | {"type", "types", "uri", "url", "version"}
)
"""Final words of names of facts about a secret, which are not secrets."""

_QUESTIONS: Final = frozenset({"has", "is", "needs", "requires"})
"""First words of names whose value is a yes or no."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")

LONGEST: Final = 256
"""Maximum characters of a name that are examined, from its end."""


def has_word(lower: str) -> bool:
    """Return whether a text in lower case contains one of `WORDS`."""
    for word in WORDS:  # noqa: SIM110  (`any` takes three times as long, for each text that is recorded)
        if word in lower:
            return True
    return False


Kind: TypeAlias = Literal["", "any", "number", "text"]
"""Values that a name hides: none, any value with its contents, a text or number (`pin`), or a text (`pass`)."""


@lru_cache(maxsize=4096)
def kind_of(name: str) -> Kind:
    """Return what a name hides."""
    if not has_word(name.lower()):
        return ""
    words = [word.lower() for word in _WORD.findall(name[-LONGEST:])]
    if not words or words[-1] in _ABOUT or words[0] in _QUESTIONS:
        return ""
    if words == ["pass"]:
        return "text"
    return "number" if words[-1] == "pin" else "any" if _name_secret(words) else ""


def _name_secret(words: list[str]) -> bool:
    if any(word.endswith(_SECRETS) for word in words) or "".join(words).endswith(_ENDS):
        return True
    *others, last = words
    before = others[-1] if others else ""
    if last == "pass":
        return before in _PASSES
    if last.endswith(("token", "tokens", "bearer")):
        return before in _TOKENS if last == "tokens" else before not in _NOT_TOKENS
    return last in _LAST or any(
        word in ("key", "keys") and words[n].endswith(_KEYS) for n, word in enumerate(words[1:])
    )


def names_secret(name: str) -> bool:
    """Return whether a name is that of a secret, whatever its value is."""
    return kind_of(name) == "any"


def hides(name: str, value: object) -> bool:
    """Return whether a value is a secret because of its name."""
    kind = kind_of(name)
    if not kind or kind == "any":
        return kind == "any"
    return isinstance(value, str) or (kind == "number" and type(value) in (int, float))


def ends_secret(fragment: str) -> bool:
    """Return whether the fragment can be the end of the name of a secret."""
    return any(name.endswith(fragment.lower()) for name in (*_SECRETS, "token", "key", "bearer"))
