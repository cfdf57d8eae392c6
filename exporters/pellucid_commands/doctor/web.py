"""HTTP requests of the checks, and explanations of failures."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import urljoin, urlsplit

import requests
import urllib3.exceptions

from pellucid_commands.doctor.addresses import is_far
from pellucid_commands.doctor.findings import Finding, Setup
from pellucid_exporters.urls import shown

Kind: TypeAlias = Literal[
    # no response
    "address", "refused", "name", "untrusted", "other_host", "certificate_wanted", "no_tls", "not_http", "closed",
    "timeout",
    # unexpected response
    "credentials", "not_allowed", "path", "overloaded", "redirect", "page",
    "other",
]  # fmt: skip

_CONTAINER_FILES: Final = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and Podman make in their containers."""

MAX_BYTES: Final = 32 * 1024 * 1024

REMEDIES: Final[Mapping[Kind, str]] = {
    "refused": "start what should listen there, or give another address",
    "name": "check the host's name",
    "untrusted": "name the authority of its certificate: --ca FILE",
    "other_host": "use the name that is in its certificate",
    "certificate_wanted": "it asks for a client certificate, which this command does not have: ask from where it has",
    "no_tls": "write http:// instead of https://",
    "not_http": "give the port that speaks HTTP",
    "closed": "if it speaks TLS, write https://",
    "timeout": "check whether it hangs or a firewall drops packets; --timeout sets a longer wait",
    "other": "see that server's log",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """Reason of a missing response.

    Attributes:
        text: Description of the problem.
    """

    kind: Kind
    text: str


_MAX_REDIRECTS: Final = 3
"""Redirects that are followed, such as from `/metrics` to the application that is mounted there."""


class Unreachable(Exception):
    """Error of a request without a response.

    Attributes:
        trouble: Reason of the missing response.
    """

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble


@dataclass(frozen=True, slots=True)
class Page:
    """Response to a request.

    Attributes:
        content_type: Content type in lower case.
        location: URL of the same server to which it redirects; None if it does not.
    """

    status: int
    content_type: str
    text: str
    location: str | None = None


def fetch(url: str, setup: Setup, *, accept: str = "*/*", token: str | None = None) -> Page:
    """Request a page, limited to `setup.timeout` seconds and a maximum size; follow redirects within its server.

    Raises:
        Unreachable: there is no response.
    """
    page = _fetch(url, setup, accept, token)
    for _ in range(_MAX_REDIRECTS):
        if page.location is None:
            break
        page = _fetch(page.location, setup, accept, token)
    return page


def _fetch(url: str, setup: Setup, accept: str, token: str | None) -> Page:
    headers = {"Accept": accept, **({"Authorization": f"Bearer {token}"} if token else {})}
    deadline = time.monotonic() + setup.timeout
    try:
        with (
            requests.Session() as session,
            session.get(
                url, headers=headers, timeout=setup.timeout, verify=setup.ca or True, stream=True, allow_redirects=False
            ) as answer,
        ):
            body = b"".join(_read(answer, deadline))
            kind, text = answer.headers.get("Content-Type", "").lower(), body.decode(errors="replace")
            return Page(answer.status_code, kind, text, _location(url, answer))
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise Unreachable(why(error, setup.timeout)) from error


def _location(url: str, answer: requests.Response) -> str | None:
    """Return where a response redirects to, if that is on the same server: others must not get the token."""
    if not answer.is_redirect:
        return None
    location = urljoin(url, answer.headers["Location"])
    here, there = urlsplit(url), urlsplit(location)
    return location if (here.scheme, here.netloc) == (there.scheme, there.netloc) else None


def unreachable(about: str, url: str, trouble: Trouble) -> Finding:
    """Return the finding for an unreachable page."""
    hint = container_hint(url) if trouble.kind == "refused" else ""
    return Finding("wrong", about, f"{shown(url)} {trouble.text}", f"{REMEDIES[trouble.kind]}{hint}")


def container_hint(url: str) -> str:
    """Return the hint that this machine is a container, if it is, for addresses of this machine."""
    is_container = any(Path(file).exists() for file in _CONTAINER_FILES) or "KUBERNETES_SERVICE_HOST" in os.environ
    if is_far(url) or not is_container:
        return ""
    return "; in a container this address is the container itself: name the service or the host that has the server"


def why(error: BaseException, timeout: float) -> Trouble:
    """Explain an error of the HTTP library, whose own message may quote addresses with secrets."""
    for cause in _causes(error):
        trouble = _known(cause, timeout)
        if trouble is not None:
            return trouble
    return Trouble("other", f"the request failed ({type(error).__name__})")


_CLOSED: Final = Trouble("closed", "closed the connection without an answer")
_KNOWN: Final[tuple[tuple[type[BaseException], Trouble], ...]] = (
    (ConnectionRefusedError, Trouble("refused", "refused the connection: nothing listens there")),
    (socket.gaierror, Trouble("name", "has a host name that is not known here")),
    (http.client.RemoteDisconnected, _CLOSED),
    (http.client.BadStatusLine, Trouble("not_http", "answered something that is not HTTP/1, as gRPC ports do")),
    (ConnectionError, _CLOSED),
)
"""Errors of the standard library; the first match applies."""


def _known(error: BaseException, timeout: float) -> Trouble | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        if "mismatch" in error.verify_message:
            return Trouble("other_host", "shows a certificate for another host")
        return Trouble("untrusted", f"shows a certificate that is not trusted: {error.verify_message}")
    if isinstance(error, ssl.SSLError):
        return _tls(error)
    if isinstance(error, (TimeoutError, requests.Timeout, urllib3.exceptions.TimeoutError)):
        return Trouble("timeout", f"did not answer within {timeout:g} s")
    return next((trouble for kind, trouble in _KNOWN if isinstance(error, kind)), None)


def _tls(error: ssl.SSLError) -> Trouble:
    if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return _CLOSED
    reason = error.reason or "no reason given"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"):
        return Trouble("no_tls", "does not speak TLS")
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return Trouble("certificate_wanted", f"ended the TLS handshake ({reason})")
    return Trouble("other", f"failed in the TLS handshake ({reason})")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, the innermost first."""
    causes: list[BaseException] = []
    queue = [error]
    while queue:
        one = queue.pop()
        if any(one is cause for cause in causes):
            continue
        causes.append(one)
        linked = [one.__cause__, one.__context__, getattr(one, "reason", None), *one.args]
        queue += [link for link in linked if isinstance(link, BaseException)]
    return reversed(causes)


def _read(answer: requests.Response, deadline: float) -> Iterator[bytes]:
    read = 0
    for piece in answer.iter_content(64 * 1024):
        read += len(piece)
        if read > MAX_BYTES:
            raise ValueError(f"the answer is bigger than {MAX_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError
        yield piece
