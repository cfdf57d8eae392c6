"""Texts without secrets that look as if they had some: numbers, code, and sentences about secrets."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

SENTENCES = """
He has a basic understanding of the matter.
Basic authentication is supported, and so is Bearer authentication.
The bearer of bad news is never welcome.
Please rotate the password every 90 days.
The token: a unit of text that a model reads.
Password: must contain at least eight characters.
Secret: nobody knows how it works.
Cookies: small files that a browser keeps for a site.
Authorization: required for all endpoints below.
Set the password in the settings, then restart.
Your password has expired; choose another one.
The secret of success is patience.
A session cookie is deleted when the browser closes.
max_tokens=4096, temperature=0.7
total tokens: 1532, cached tokens: 1024
{"usage": {"input_tokens": 1200, "output_tokens": 310, "cached_tokens": 0}}
{"max_tokens": 1000, "token_count": 17, "tokens": [1, 2, 3]}
{"next_page_token": "CAUQAA", "items": []}
{"primary_key": "id", "foreign_key": "user_id", "sort_key": "created_at"}
{"key": "value", "other_key": "another value"}
{"type": "object", "properties": {"password": {"type": "string"}}, "required": ["password", "email"]}
{"keyboard": "qwerty", "monkey": "banana", "passenger": "Ann", "author": "Bob"}
{"password": null, "token": ""}
{"password": "<password>", "api_key": "${API_KEY}"}
{"password_policy": "strict", "token_type": "bearer", "token_url": "https://h.example/token"}
{"pass": 12, "fail": 3, "pass_rate": 0.8}
token = next(tokens)
token = tokens[0]
token = self.token
password = getpass.getpass("Password for the database")
secret = os.environ["APP_SECRET"]
api_key = os.environ.get("API_KEY")
def connect(user: str, password: str, token: str | None = None) -> None: ...
client = connect(user=user, password=password, token=token)
for token in tokens: print(token)
if token == None: raise ValueError
password: str
api_key: SecretStr = Field(default=None)
CREATE INDEX pk_customer_orders_2024_idx ON customer_orders (id);
ALTER TABLE orders ADD CONSTRAINT pk_customer_orders_2024_idx PRIMARY KEY (id);
import sk-learn-compatible-estimators
from hf_transformers_pipeline_extras import run
The tool gh_list_repositories_for_user returns names.
npm_config_registry_for_the_build is not set.
SGML and SG.NO are words.
AKIA is how they begin, and eyJ is how others do.
http://example.com:8080/a@b
https://medium.com/@ann/a-story-about:nothing
https://hub.example/r/image:latest@sha256:0123456789abcdef
docker pull registry.example:5000/image@sha256:0123456789abcdef0123456789abcdef
Write to ann@example.com or bob@example.com.
git@github.com:owner/repository.git
See https://example.com/docs?page=2&sort=name#section
2026-11-21T05:47:13.123456Z started
commit 9fceb02d0ae598e95dc970b74767f19372d61af8
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
id 123e4567-e89b-12d3-a456-426614174000
The file is data:image/png;base64,iVBORw0KGgoAAAANSUhEUg==
-----BEGIN CERTIFICATE----- is how a certificate begins
-----BEGIN PUBLIC KEY-----
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5 is a type of key
The key: read the manual first.
key=value; other=thing
Press any key to continue: it does not matter which.
--token-limit 100 --key-size 2048
run --password-file /run/secrets/db --verbose
The order 1234 5678 9012 3456 has shipped.
Call +49 30 1234567 or 0800 1234567.
ISBN 978-3-16-148410-0
IBAN DE89 3704 0044 0532 0130 00
10.0.0.1:8080 and 192.168.1.254
version 1.2.3-beta.4+build.5
a broken: tokenizer: x
we pass: all of them
compass: north
The digest is a response to a question.
curl -X POST https://h.example/items
curl -u is the option for a user
<key>name</key><value>Ann</value>
<author>Ann</author>
- name: LOG_LEVEL
[{"name": "region", "value": "eu-west-1"}]
[("content-type", "application/json"), ("accept", "text/html")]
Traceback (most recent call last): KeyError: 'name'
1 validation error for User: age, input_value={'name': 'Ann', 'a...city': 'Rome'}, input_type=dict
password: required
Set the credentials: name=value, with %20 for a blank.
token: optional
secret: ***
cookie: none
time_to_first_token: 0.31, timePerOutputToken=0.02, first_token=the, last_token: end
{"time_to_first_token": 0.31, "timePerOutputToken": 0.02, "first_token": "the", "progress_token": "p-1"}
{"has_password": true, "is_secret": "no", "access_key_age_days": 12, "authorization_status": "pending"}
{"pass": 12, "pin": true, "shipping": "free", "mapping": {"a": 1}, "session_id": "abc123", "sessionId": "abc123"}
def connect(user: User, token: Token) -> None: ...
if token == end: break
while secret != stop: pass
cookie = SimpleCookie()
cookie = SimpleCookie
self.token = token
const token = await getToken()
http://localhost:3000,bob@x.org
http://localhost:443|ops@example.com
http://[::1]:8080/a@b
PASS: tests/test_login.py
2 pass: all green
https://example.com/orders?code=404&key=name&session=2024
docker run -p 8080:80 image
mkdir -p build && cd build
cp -a source target
The password is 'strong' only if it is long.
Bearer token-based authentication is preferred.
WWW-Authenticate: Bearer realm="example"
The user is identified by the id 'ann'.
pinned: 3, spinning: no, options: a
"""


def _luhn(digits: str) -> str:
    """Return digits with their check digit."""
    total = sum(sum(divmod(int(digit) * (2 - n % 2), 10)) for n, digit in enumerate(reversed(digits)))
    return digits + str(-total % 10)


def _numbers(source: random.Random) -> Iterator[str]:
    for _ in range(60):
        points = [[source.uniform(-180, 180), source.uniform(-90, 90)] for _ in range(8)]
        yield json.dumps({"type": "LineString", "coordinates": points})
    for _ in range(40):
        yield json.dumps([source.gauss(0, 1) for _ in range(20)])
    for length in (16, 17, 18):
        for number in range(16):
            known = str(source.randrange(10 ** (length - 1), 10**length))
            yield json.dumps({"id": int(known), "ids": [int(known), 1]}) if number % 2 else f"order {known} has shipped"
    for _ in range(16):
        yield f"IMEI {_luhn('35' + str(source.randrange(10**11, 10**12)))}"
    for _ in range(16):
        yield json.dumps([int(_luhn("4" + str(source.randrange(10**13, 10**14)))) for _ in range(4)], indent=1)
    for _ in range(20):
        yield f"at {source.randrange(10**15, 2 * 10**15)} µs, {source.randrange(10**12, 2 * 10**12)} ms"
    for _ in range(20):
        yield f"{source.random():.17f}, {source.random():.16e} and {-source.random():.15f}"


HARMLESS = [*SENTENCES.strip().split("\n"), *_numbers(random.Random(7))]
"""Texts that stay as they are."""
