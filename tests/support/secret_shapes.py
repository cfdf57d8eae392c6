"""Secrets of many shapes, and the places where they occur.

Bodies are filled in by a seeded generator, so that no scanner takes this file for a leak.
"""

from __future__ import annotations

import base64
import json
import random
import re
import string
from collections.abc import Callable, Iterator
from typing import NamedTuple

ALPHABETS = {
    "A": string.ascii_letters + string.digits,
    "B": string.ascii_letters + string.digits + "_-",
    "L": string.ascii_lowercase + string.digits,
    "U": string.ascii_uppercase + string.digits,
    "X": string.ascii_uppercase + "234567",
    "d": string.digits,
    "h": "0123456789abcdef",
}


class Shape(NamedTuple):
    """A text with a secret. Attributes: hidden: parts of which nothing may stay; documented: a kind of `privacy.md`."""

    name: str
    text: str
    hidden: tuple[str, ...]
    documented: bool = False


def filled(pattern: str, seed: str = "") -> str:
    """Return a pattern with each `{A20}` replaced by 20 characters of an alphabet, the same every time."""
    source = random.Random(pattern + seed)
    return re.sub(r"\{(\w)(\d+)\}", lambda m: "".join(source.choices(ALPHABETS[m[1]], k=int(m[2]) - 1)) + "7", pattern)


DOCUMENTED_TOKENS = """
sk-{A48} sk-proj-{B60} sk-svcacct-{B60} sk-ant-api03-{B90} sk-or-v1-{h64} sk_live_{A24} sk_test_{A24} rk_live_{A24}
ghp_{A36} gho_{A36} ghu_{A36} ghs_{A36} ghr_{A36} github_pat_{A22}_{A59} glpat-{B20} xoxb-{d12}-{d12}-{A24}
xoxp-{d12}-{d12}-{A32} xoxa-2-{A30} hf_{A34} AKIA{X16} ASIA{X16} AIza{B35}
eyJ{B17}.eyJ{B40}.{B43} eyJ{B30}.eyJ{B20}. eyJ{B30}..{B16}.{B40}.{B22}
"""

OTHER_TOKENS = """
ya29.{B60} GOCSPX-{B28} 1//0{B40} xapp-1-A{U10}-{d13}-{h64} xoxe.xoxp-1-{A60} whsec_{A32} SG.{B22}.{B43} npm_{A36}
pypi-AgEIcHlwaS5vcmc{B60} SK{h32} gsk_{A52} xai-{A80} nvapi-{B64} dop_v1_{h64} doo_v1_{h64} dor_v1_{h64} shpat_{h32}
shpss_{h32} shpca_{h32} shppa_{h32} dapi{h32} hvs.{B90} hvb.{B90} hvr.{B90} dckr_pat_{B27} dckr_oat_{B32}
MT{A22}Q.G{A5}.{B38} glrt-{B20} gldt-{B20} glptt-{h40} glcbt-1_{B20} glagent-{B50} ATATT3x{B180} ATBB{A32}
lin_api_{A40} ntn_{A46} figd_{B40} glsa_{A32}_{h8} glc_{A40} NRAK-{U27} sntrys_{B60} sntryu_{h64} pscale_tkn_{B43}
pscale_pw_{B43} sbp_{h40} sb_secret_{B31} dp.pt.{A43} dp.st.{A43} {A14}.atlasv1.{B67} pul-{h40} HRKU-{B36}
PMAK-{h24}-{h34}
pplx-{A48} r8_{A37} jina_{A60} tvly-{A32} pcsk_{A60} lsv2_pt_{h32}_{h10} lsv2_sk_{h32}_{h10} csk-{A48} rubygems_{h48}
CCIPAT_{A22}_{h40} bkua_{h40} ABSK{A60} AGE-SECRET-KEY-1{U58} LTAI{A20} sq0atp-{B22} sq0csp-{B43} {h32}-us12 key-{h32}
nfp_{A36} pat-na1-{h8}-{h4}-{h4}-{h4}-{h12} rzp_live_{A14} xkeysib-{h64}-{A16} shippo_live_{h40} sgp_{h40} PMAT-{U26}
duffel_live_{B43} FLWSECK-{h32}-X EZAK{A54} pnu_{A36} rdme_{h70} tfp_{A44}_{A14} CLOJARS_{h60} CFPAT-{B43} fio-u-{B64}
sk-lf-{h8}-{h4}-{h4}-{h4}-{h12} sk_{h48} glft-{B20} glsoat-{B20} access-production-{h8}-{h4}-{h4}-{h4}-{h12}
xoxd-{A60} xoxc-{d12}-{d12}-{h64} tskey-auth-{A12}-{A30} tskey-api-{A12}-{A30} dt0c01.{U24}.{U64}
vercel_blob_rw_{A16}_{A30}
squ_{h40} sqp_{h40} AROA{X16} AIPA{X16} tgp_v1_{B43} secret_{A43} AKCp{A69} pat{A14}.{h64} {A3}8Q~{A34} sl.{B135}
ops_eyJ{B250} p8e-{L32} 4b1d{A38} dnkey-{L26}-{L52} EAAM{A110} ico-{A32} sha256~{B43} tk-us-{B48} sm_pat_{A16}
{A6}_{A29}_mmk A3-{U6}-{U11}-{U5}-{U5}-{U5} v1.0-{h24}-{h146} API-{U26} glrtr-{B20} sk_prod_{A24} fm1r_{A100} slk_{h64}
"""

CARDS = """
4111111111111111 4012888888881881 4242424242424242 5555555555554444 5105105105105100 2223003122003222 2221000000000009
2720990000000007 378282246310005 371449635398431 6011111111111117 6011000990139424 3530111333300000 30569309025904
38520000023237 6212345678901232 4532015112830366
"""

USER_INFO = (
    "postgres://app:{}@db.example/x", "postgresql+asyncpg://app:{}@db.example:5432/x", "mysql://root:{}@127.0.0.1/x",
    "redis://:{}@cache:6379/0", "amqp://guest:{}@mq.example//", "mongodb+srv://u:{}@c0.example.net/d?w=1",
    "https://user:{}@h.example/p", "https://ann@corp.example:{}@h.example/", "ftp://a:{}@h.example/f",
    "smtp://ann%40x:{}@m.example:587", "amqps://us/er:{}@mq.example/v", "socks5://u:{}@p.example:1080",
)  # fmt: skip

URL_PASSWORDS = ("{A16}", "p@{A12}", "p/{A12}", "{A6}@{A6}/{A4}", "{A8}:{A8}", "{A8}#{A4}!")

BLOCKS = (
    "PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY", "OPENSSH PRIVATE KEY",
    "ENCRYPTED PRIVATE KEY", "PGP PRIVATE KEY BLOCK", "SSH2 ENCRYPTED PRIVATE KEY",
)  # fmt: skip

DOCUMENTED_KEYS = """
password passwd passphrase pwd secret authorization cookie credential api_key access_key private_key signing_key token
bearer passwords secrets credentials cookies api_keys access_keys db_password DB_PASSWORD dbPassword userPassword
client_secret clientSecret ClientSecret client-secret apiKey api-key apikey API_KEY OPENAI_API_KEY openaiApiKey
x-api-key X-Api-Key accessKey access-key AWS_SECRET_ACCESS_KEY aws_access_key privateKey private-key signingKey
signing-key accessToken access_token ACCESS_TOKEN refreshToken refresh_token id_token idToken auth_token authToken
X-Auth-Token csrfToken GITHUB_TOKEN
hf_token APIToken apiToken setCookie Set-Cookie Proxy-Authorization proxyAuthorization
SECRET_KEY secret_key secretKey APP_SECRET appSecret jwtSecret passwordHash password_hash password2 newPassword
user.password user[password] $password auth.token config.apiKey mypassword key_passphrase session_token bot_token
"""

OTHER_KEYS = """
DB_PASS SMTP_PASS dbPass AccountKey SharedAccessKey shared_key encryption_key ENCRYPTION_KEY encryptionKey master_key
storage_key passcode creds ssh_key service_key webhook_key access_tokens refresh_tokens refreshTokens apiTokens
auth_key consumerKey privateKeys X-Amz-Security-Token subscription-key root_key hmac_key X-Functions-Key
pw otp cvv cvc dsn sentryDsn user_otp mnemonic seed_phrase seedPhrase connectionString connection_string
JSESSIONID PHPSESSID ASP.NET_SessionId connect.sid laravel_session sessionid
"""


class Key(NamedTuple):
    """A name under which secrets are kept."""

    name: str
    documented: bool


KEYS = [*(Key(name, True) for name in DOCUMENTED_KEYS.split()), *(Key(name, False) for name in OTHER_KEYS.split())]


def _tokens() -> Iterator[Shape]:
    for listed, documented in ((DOCUMENTED_TOKENS, True), (OTHER_TOKENS, False)):
        for pattern in listed.split():
            text = filled(pattern)
            yield Shape(pattern, text, (text,), documented)


def _cards() -> Iterator[Shape]:
    for number in CARDS.split():
        yield Shape(number, number, (number,), True)
        sizes = {15: (4, 6, 5), 14: (4, 6, 4)}.get(len(number), (4, 4, 4, 4))
        groups = [number[sum(sizes[:n]) : sum(sizes[: n + 1])] for n in range(len(sizes))]
        for form in ("{}", "{} 123", "{} 12/27 123", "17 {}", "{}|12|27"):
            for mark in (" ", "-", "  ", "\t", "\N{NO-BREAK SPACE}", "\N{EN DASH}") if form == "{}" else " ":
                grouped = mark.join(groups)
                yield Shape(f"card {form}{mark}", form.format(grouped), (grouped, f"{mark}{groups[-1]}"), True)


def _blocks() -> Iterator[Shape]:
    for name in BLOCKS:
        lines = [filled("{A40}", f"{name}{n}") for n in range(3)]
        body = "\n".join(lines)
        yield Shape(name, f"-----BEGIN {name}-----\n{body}\n-----END {name}-----", tuple(lines), True)
        yield Shape(f"{name}, cut", f"-----BEGIN {name}-----\n{body}", tuple(lines), True)


def _urls() -> Iterator[Shape]:
    for number, url in enumerate(USER_INFO):
        for pattern in URL_PASSWORDS:
            password = filled(pattern, str(number))
            if "#" in password and "http" in url:
                continue  # a fragment
            yield Shape(url, url.format(password), (password,), True)
    for pattern in ("https://hooks.slack.com/services/T{U9}/B{U10}/", "https://discord.com/api/webhooks/{d18}/"):
        secret = filled("{A32}", pattern)
        yield Shape(pattern, filled(pattern) + secret, (secret,))
    secret = filled("AA{B33}", "telegram")
    yield Shape("Telegram", f"https://api.telegram.example/bot1234567890:{secret}/getMe", (secret,))
    for pattern in ("?sv=1&sig={A40}%3D", "?X-Amz-Date=1&X-Amz-Signature={h64}", "?X-Goog-Signature={h128}"):
        secret = filled(pattern).rpartition("=")[2] if "%3D" not in pattern else filled(pattern)[10:]
        yield Shape(pattern, "https://b.example/o" + filled(pattern), (secret,))


def _credentials() -> Iterator[Shape]:
    for number, form in enumerate(("Bearer {}", "bearer {}", "Authorization: Bearer {}", "authorization: token {}")):
        for pattern in ("{A24}", "{B40}", "{h64}", "{A16}=="):
            secret = filled(pattern, str(number))
            yield Shape(form, form.format(secret), (secret,), True)
    for user in ("ann:hunter2secret", "a.b@c.example:x", "admin:1234", "ann:"):
        secret = base64.b64encode(user.encode()).decode()
        for form in ("Basic {}", "basic {}", "Authorization: Basic {}"):
            yield Shape(form, form.format(secret), (secret,), True)
    digest = filled("{h32}", "digest")
    yield Shape(
        "digest", f'Authorization: Digest username="a", uri="/", response="{digest}", qop=auth', (digest,), True
    )
    for form in ("curl -u ann:{} https://h.example", "curl --user ann:{} -X POST h.example"):
        yield Shape(form, form.format("hunter2Xy"), ("hunter2Xy",))
    for value in ("hun,ter2x", "hun;ter2x", "hun&ter2x", "hun'ter2x", 'hun"ter2x', "[redacted]hunter2x"):
        yield Shape(f"tail {value}", f"password={value}", (value[-5:],), True)


TEXTS = [*_tokens(), *_cards(), *_blocks(), *_urls(), *_credentials()]
"""Secrets that are recognised by themselves."""

Place = Callable[[str], str]

PLACES: dict[str, Place] = {
    "alone": lambda s: s,
    "JSON value": lambda s: json.dumps({"note": s}),
    "prose": lambda s: f"Please use {s} for this",
    "end of a sentence": lambda s: f"It is {s}\nas ever.",
    "header": lambda s: f"X-Data: {s}\r\nHost: h.example",
    "JSON in JSON": lambda s: json.dumps({"body": json.dumps({"note": s})}),
    "JSON thrice": lambda s: json.dumps(json.dumps({"body": json.dumps([s])})),
    "exception": lambda s: f"Traceback:\nValueError: could not use {s!r}",
    "repr of an exception": lambda s: repr(OSError(f"bad {s}")),
    "repr of a dict": lambda s: repr({"note": s, "n": 1}),
    "YAML": lambda s: f"a: 1\nnote: {s}\nb: 2",
    "environment": lambda s: f"NOTE={s}\nB=1",
    "command line": lambda s: f"run --note {s} --fast",
    "in brackets": lambda s: f"({s})",
    "dictionary key": lambda s: json.dumps({s: 1}),
    "list": lambda s: repr(["a", s, 1]),
    "lines": lambda s: f"first\n{s}\nlast",
    "JSON after a line": lambda s: json.dumps({"log": f"first\n{s}\nlast"}),
    "JSON after a tab": lambda s: json.dumps({"log": f"first\t{s}\r\n"}),
    "JSON in JSON after a line": lambda s: json.dumps({"body": json.dumps({"log": f"first\n{s}\tx"})}),
    "backticks": lambda s: f"a `{s}` b",
    "XML": lambda s: f"<note>{s}</note>",
    "table": lambda s: f"| a | {s} | b |",
    "repr of bytes": lambda s: repr({"raw": s.encode()}),
}


NamedPlace = Callable[[str, str], str]

NAMED_PLACES: dict[str, NamedPlace] = {
    "JSON": lambda k, v: json.dumps({"a": 1, k: v}),
    "compact JSON": lambda k, v: json.dumps({k: v, "b": 2}, separators=(",", ":")),
    "indented JSON": lambda k, v: json.dumps({"a": {k: v}}, indent=2),
    "JSON in JSON": lambda k, v: json.dumps({"body": json.dumps({k: v, "x": 1})}),
    "JSON thrice": lambda k, v: json.dumps(json.dumps(json.dumps({k: v, "x": 1}))),
    "JSON list": lambda k, v: json.dumps({k: [v, v]}),
    "JSON object": lambda k, v: json.dumps({k: {"value": v}}),
    "JSON after a line": lambda k, v: json.dumps({"log": f"first\n{k}={v}\nlast"}),
    "repr of a dict": lambda k, v: repr({"a": 1, k: v}),
    "repr of an object": lambda k, v: f"User(name='a', {k}='{v}')",
    "YAML": lambda k, v: f"a: 1\n{k}: {v}\nb: 2",
    "quoted YAML": lambda k, v: f'a: 1\n{k}: "{v}, and {v}"\n',
    "environment": lambda k, v: f"A=1\nexport {k}={v}\nB=2",
    "code": lambda k, v: f'{k} = "{v}"',
    "query": lambda k, v: f"https://h.example/p?a=1&{k}={v}&b=2",
    "header": lambda k, v: f"GET / HTTP/1.1\r\n{k}: {v}\r\nHost: h",
    "prose": lambda k, v: f"Set {k}={v}, then try again.",
    "log line": lambda k, v: f"level=info {k}={v} msg=ok",
    "pairs": lambda k, v: repr([("a", "b"), (k, v)]),
    "name and value": lambda k, v: json.dumps([{"name": k, "value": v}]),
    "name and value in YAML": lambda k, v: f"- name: {k}\n  value: {v}\n",
    "arrow": lambda k, v: f"'{k}' => '{v}',",
    "encoded query": lambda k, v: f"next=%2Fp%3F{k}%3D{v}%26b%3D2",
    "connection string": lambda k, v: f"Server=h;{k}={v};Timeout=3",
    "exception": lambda k, v: repr(ValueError(f"cannot use {k}={v!r}")),
}


def remains(text: str, hidden: str) -> bool:
    """Say whether anything of a secret can be read: its beginning, end or middle."""
    if len(hidden) < 12:
        return hidden in text
    return any(part in text for part in (hidden[:9], hidden[-6:], hidden[len(hidden) // 2 :][:6]))


def named_value(key: str) -> str:
    """Return a secret that only its name gives away."""
    return filled("{A5}x{A8}", key)
