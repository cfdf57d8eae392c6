"""Keys and tokens of vendors, one line for each form.

Prefixes, alphabets and lengths are from the vendors' documentation and from the published rules of gitleaks (MIT), of
which this table has the facts, and neither text nor code. A rule is here if nothing else has its prefix and length.

To recognise another one, add a line: vendor, prefixes, and the alphabet and minimum length of the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

_ALPHABETS: Final = {
    "alnum": "[A-Za-z0-9]",
    "base64url": "[A-Za-z0-9_-]",
    "dotted": "[A-Za-z0-9_.-]",
    "hex": "[0-9a-f]",
    "numbered": "(?=[A-Za-z_-]{0,40}+[0-9])[A-Za-z0-9_-]",  # without a digit it is a name: sk-learn-compatible
    "lower": "[a-z0-9]",
    "upper": "[A-Z0-9]",
}

_TABLE: Final = (
    # vendor, prefixes, alphabet, least length
    ("1Password, service account", "ops_eyJ", "base64url", 200),
    ("Adobe", "p8e-", "lower", 32),
    ("Age", "AGE-SECRET-KEY-1", "upper", 40),
    ("Alibaba", "LTAI", "alnum", 14),
    ("Artifactory", "AKCp cmVmd", "alnum", 55),
    ("Atlassian", "ATATT3x ATCTT3x", "base64url", 40),
    ("AWS", "AKIA ASIA ABIA ACCA AROA AIPA", "upper", 14),
    ("AWS Bedrock", "ABSK", "alnum", 40),
    ("Bitbucket", "ATBB", "alnum", 24),
    ("Buildkite", "bkua_ bkaj_", "alnum", 30),
    ("Cerebras", "csk-", "alnum", 32),
    ("CircleCI", "CCIPAT_ CCIPRJ_", "base64url", 30),
    ("ClickHouse Cloud", "4b1d", "alnum", 38),
    ("Clojars", "CLOJARS_", "lower", 40),
    ("Contentful", "CFPAT-", "base64url", 30),
    ("Databricks", "dapi dkea dsapi", "hex", 32),
    ("Defined Networking", "dnkey-", "base64url", 60),
    ("DigitalOcean", "dop_v1_ doo_v1_ dor_v1_", "hex", 40),
    ("Docker", "dckr_pat_ dckr_oat_", "base64url", 20),
    ("Doppler", "dp.pt. dp.st. dp.ct. dp.sa. dp.scim. dp.audit.", "dotted", 30),
    ("Dropbox", "sl. sl.u.", "base64url", 100),
    ("Duffel", "duffel_live_ duffel_test_", "base64url", 30),
    ("Dynatrace", "dt0c01. dt0s01. dt0s02. dt0s16.", "dotted", 60),
    ("EasyPost", "EZAK EZTK", "alnum", 40),
    ("Facebook", "EAAM EAAC", "alnum", 100),
    ("Figma", "figd_ figo_ figu_", "base64url", 24),
    ("Flutterwave", "FLWSECK- FLWSECK_TEST-", "base64url", 12),
    ("Fly", "fo1_ fm1_ fm1a_ fm1r_ fm2_", "base64url", 30),
    ("Frame.io", "fio-u-", "base64url", 40),
    ("GitHub", "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", "base64url", 12),
    (
        "GitLab",
        "glpat- gldt- glrt- glcbt- glptt- glft- glagent- glsoat- glimt- gloas- glffct- glrtr- GR1348941",
        "dotted",
        12,
    ),
    ("Google, API key", "AIza", "base64url", 14),
    ("Google, client secret", "GOCSPX-", "base64url", 20),
    ("Google, access token", "ya29. ya29.a0 ya29.c.", "dotted", 20),
    ("Grafana", "glsa_ glc_", "base64url", 20),
    ("Groq", "gsk_", "alnum", 30),
    ("Heroku", "HRKU-", "base64url", 30),
    ("HubSpot", "pat-na1- pat-na2- pat-eu1-", "base64url", 30),
    ("Hugging Face", "hf_ api_org_", "alnum", 16),
    ("Infracost", "ico-", "alnum", 32),
    ("Jina", "jina_", "base64url", 40),
    ("LangSmith", "lsv2_pt_ lsv2_sk_", "base64url", 30),
    ("Linear", "lin_api_ lin_oauth_", "alnum", 30),
    ("Mailgun", "key-", "hex", 32),
    ("Netlify", "nfp_", "base64url", 30),
    ("New Relic", "NRAK- NRII- NRJS-", "base64url", 16),
    ("Notion", "ntn_ secret_", "alnum", 40),
    ("npm", "npm_", "alnum", 30),
    ("NVIDIA", "nvapi-", "base64url", 30),
    ("OpenShift", "sha256~", "base64url", 43),
    ("Pellucid, calls", "pct1.", "dotted", 40),
    ("Perplexity", "pplx-", "alnum", 30),
    ("Pinecone", "pcsk_", "base64url", 40),
    ("PlanetScale", "pscale_tkn_ pscale_pw_ pscale_oauth_", "dotted", 30),
    ("Postman", "PMAK- PMAT-", "base64url", 20),
    ("Prefect", "pnu_ pnb_", "alnum", 30),
    ("Pulumi", "pul-", "hex", 40),
    ("PyPI", "pypi-AgE", "base64url", 30),
    ("Razorpay", "rzp_live_ rzp_test_", "alnum", 14),
    ("ReadMe", "rdme_", "lower", 60),
    ("Replicate", "r8_", "alnum", 30),
    ("RubyGems", "rubygems_", "hex", 40),
    ("Scalingo", "tk-us-", "base64url", 48),
    ("SendGrid", "SG.", "dotted", 30),
    ("Sendinblue", "xkeysib- xsmtpsib-", "base64url", 60),
    ("Sentry", "sntrys_ sntryu_", "base64url", 40),
    ("SettleMint", "sm_aat_ sm_pat_ sm_sat_", "alnum", 16),
    ("Shippo", "shippo_live_ shippo_test_", "hex", 32),
    ("Shopify", "shpat_ shpca_ shppa_ shpss_ shptka_", "alnum", 24),
    ("Slack", "xoxa- xoxb- xoxc- xoxd- xoxe- xoxo- xoxp- xoxr- xoxs- xoxe.xox xapp-", "dotted", 12),
    ("SonarQube", "squ_ sqp_ sqa_", "hex", 40),
    ("Sourcegraph", "sgp_ slk_", "base64url", 40),
    ("Square", "sq0atp- sq0csp- sq0idp-", "base64url", 20),
    ("Stripe", "sk_live_ sk_test_ sk_prod_ rk_live_ rk_test_ rk_prod_ pk_live_ pk_test_ whsec_", "alnum", 12),
    ("Supabase", "sbp_ sb_secret_", "base64url", 24),
    ("Tailscale", "tskey-auth- tskey-api- tskey-client- tskey-scim- tskey-webhook-", "base64url", 20),
    ("Tavily", "tvly-", "base64url", 20),
    ("Together", "tgp_v1_", "base64url", 40),
    ("Twilio", "SK", "hex", 32),
    ("Typeform", "tfp_", "base64url", 40),
    ("Vault", "hvs. hvb. hvr.", "base64url", 20),
    ("Vercel", "vercel_blob_rw_ vcp_ vci_ vca_ vcr_ vck_", "base64url", 24),
    ("xAI", "xai-", "alnum", 40),
    # Forms that many vendors share: OpenAI, Anthropic, OpenRouter, Langfuse, DeepSeek, ElevenLabs, Plaid.
    ("secret key with a project", "sk-proj- sk-svcacct- sk-admin- sk-ant- sk-or-v1- sk-lf-", "base64url", 12),
    ("secret key", "sk- rk- pk-", "alnum", 12),
    ("secret key with a name", "sk- rk- pk-", "numbered", 12),
    ("secret key", "sk_", "hex", 32),
    ("access token", "access-sandbox- access-development- access-production-", "base64url", 30),
)

_JWT_HEADER: Final = r"(?:(?<=[-_]eyJ)[\w-]{5,128}+|(?<![-_]eyJ)[\w-]{5,4096}+)"
"""Rest of the header. It is short after a character that may belong to another token, or searches would be slow."""

_OTHER: Final = (
    # JWT, also encrypted or unsigned
    rf"eyJ{_JWT_HEADER}\.(?:[\w-]{{5,}}(?:\.[\w-]*)?|\.[\w-]+)(?:\.[\w-]+){{0,2}}",
    r"0(?<=1//0)[\w-]{30,}",  # Google, refresh token
    r"AA(?<=[0-9]{8}:AA)[\w-]{30,}",  # Telegram, bot token after its id
    r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}",  # Discord, bot token
    r"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}",  # Terraform
    r"[0-9a-f]{32}-us[0-9]{1,2}",  # Mailchimp
    r"[A-Za-z0-9_.~]{3}[0-9]Q~[\w.~-]{31,}",  # Azure, client secret
    r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",  # Airtable
    r"[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk",  # MaxMind
    r"A3-[A-Z0-9]{6}-[A-Z0-9-]{11,13}-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}",  # 1Password, secret key
    r"v1\.0-[0-9a-f]{24}-[0-9a-f]{146}",  # Cloudflare, origin CA key
    r"API-[A-Z0-9]{26}(?![A-Za-z0-9-])",  # Octopus Deploy
)
"""Forms without a fixed prefix."""

_WEBHOOK: Final = re.compile(
    r"/(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks|[\w.-]{1,80}/webhookb2)"
    r"/([\w./@-]{16,})",
    re.ASCII,
)
"""Addresses of webhooks that need no other secret: Slack, Discord, Teams."""

_BLOCK: Final = re.compile(
    r"----(?:-| )BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?:-| )----.*?"
    r"(?:----(?:-| )END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?(?:-| )----|\Z)",
    re.DOTALL,
)

SHORTEST: Final = 19
"""Minimum length of a token, with its prefix."""

_IN_TOKENS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.~")
_CLASSES: Final = bytes(ord("a") if code in _IN_TOKENS else ord(" ") for code in range(256))
_RUN: Final = b"a" * SHORTEST

_SEPARATORS: Final = "_-.~"
_RUN_COST: Final = 3
_CHARACTERS_OF_COST: Final = 16
_SEPARATORS_OF_COST: Final = 2
_TOKEN_COST: Final = 4
_BLOCK_COST: Final = 8


def _forms() -> str:
    """Return the table as a pattern that decides letter by letter."""
    rows = [(prefix, alphabet, least) for _, prefixes, alphabet, least in _TABLE for prefix in prefixes.split()]
    return "|".join(
        [_tree([(prefix, f"{_ALPHABETS[alphabet]}{{{least},}}") for prefix, alphabet, least in rows]), *_OTHER]
    )


def _tree(forms: list[tuple[str, str]]) -> str:
    """Return a pattern of prefixes and their rests; of two prefixes with the same start, the longer one is first."""
    by_letter: dict[str, list[tuple[str, str]]] = {}
    for prefix, rest in forms:
        by_letter.setdefault(prefix[:1], []).append((prefix[1:], rest))
    ends = [rest for _, rest in by_letter.pop("", [])]
    branches = [re.escape(letter) + _tree(rests) for letter, rests in by_letter.items()] + ends
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


_FORMS: Final = _forms()
_TOKEN: Final = re.compile(rf"[^A-Za-z0-9]({_FORMS})", re.ASCII)
"""Token after a character that is not a letter or digit."""


@cache
def _escaped() -> re.Pattern[str]:
    """Return the pattern of a token after an escape such as that of a line break; few texts have one."""
    return re.compile(rf"(?:\\[nrtbf]|%[0-9A-Fa-f]{{2}})({_FORMS})", re.ASCII)


def may_have_tokens(text: str) -> bool:
    """Return whether a text has a run of token characters that is long enough; in prose there is hardly any."""
    return len(text) >= SHORTEST and _RUN in _classes(text)


def find_tokens(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the start and end of vendors' keys and tokens, and the work; only long runs are searched."""
    classes = _classes(text)
    padded = f" {text}"
    start = classes.find(_RUN)
    while start >= 0:
        end = classes.find(b" ", start)
        if end < 0:
            end = len(classes)
        separators = sum(text.count(separator, start, end) for separator in _SEPARATORS)  # a token may follow each
        yield start, start, _RUN_COST + (end - start) // _CHARACTERS_OF_COST + separators // _SEPARATORS_OF_COST
        if padded[start] in "\\%" and (match := _escaped().match(padded, start, end + 1)):
            yield match.start(1) - 1, match.end(1) - 1, _TOKEN_COST
        for match in _TOKEN.finditer(padded, start, end + 1):
            yield match.start(1) - 1, match.end(1) - 1, _TOKEN_COST
        start = classes.find(_RUN, end)


def _classes(text: str) -> bytes:
    return text.encode("latin-1", "replace").translate(_CLASSES)


def find_blocks(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the start and end of private keys and of the secret parts of webhook addresses, and the work."""
    if "BEGIN " in text:
        yield from ((*match.span(), _BLOCK_COST) for match in _BLOCK.finditer(text))
    if "://" in text and "hook" in text:
        yield from ((*match.span(1), _BLOCK_COST) for match in _WEBHOOK.finditer(text))
