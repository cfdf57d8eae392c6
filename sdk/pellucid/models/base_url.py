"""Errors of a model whose base URL is likely to be wrong."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from pellucid.text import shown_url

_VERSION: Final = re.compile(r"v\d+\w*")
_NO_SUCH_PATH: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})


def at_address(url: str, text: str) -> str:
    """Return the text of a failed connection with the base URL, without what may be secret in it."""
    return f"{text} (base URL {shown_url(url)})"


def is_page(response: httpx2.Response) -> bool:
    """Return whether a response is a web page, which no API answers."""
    return "html" in response.headers.get("content-type", "")


def misses_api(response: httpx2.Response) -> bool:
    """Return whether a response, whose body was read, says that its server has no such path.

    The APIs describe their own 404, such as that of an unknown model, in the member `error`.
    """
    return response.status_code in _NO_SUCH_PATH and not _error_of(_json(response))


def without_api(url: str, path: str, response: httpx2.Response, *, remedy: str = "") -> str:
    """Return the text of an error for a response that is not the API's.

    Args:
        url: The base URL.
        path: Path of the request below the base URL; starts with the version if base URLs of the vendor have none.
        response: The response; its body was read unless it is a web page.
        remedy: Other faults of a base URL that looks right.
    """
    place = f"{shown_url(url).rstrip('/')}{path}"
    return f"there is no API at {place}, which answered {_content(response)}; {_advice(url, path, remedy)}"


def _advice(url: str, path: str, remedy: str) -> str:
    base = shown_url(url).rstrip("/")
    segments = urlsplit(base).path.strip("/").split("/")
    version, *_ = path.strip("/").split("/")
    if base.endswith(path):
        return f"the base URL must end before {path}: {base.removesuffix(path)}"
    if _VERSION.fullmatch(version):  # the adapter adds it
        if _VERSION.fullmatch(segments[-1]):
            return f"the base URL must end before /{segments[-1]}: {base.removesuffix('/' + segments[-1])}"
    elif not any(map(_VERSION.fullmatch, segments)):
        return f"the base URL is likely to be {base}/v1"
    return f"check the base URL {base}{remedy}"


def _content(response: httpx2.Response) -> str:
    """Return what the server answered; text and pages are named, not quoted."""
    if is_page(response):
        return "a web page"
    data = _json(response)
    if isinstance(data, dict) and (said := data.get("detail") or data.get("message")) and isinstance(said, str):
        return repr(said[:200])
    if data is not None:
        return "other JSON"
    if not response.content.strip():
        return "nothing"
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    return f"{kind or 'bytes'}, not JSON"


def _error_of(data: Any) -> Any:
    return data.get("error") or data.get("object") == "error" if isinstance(data, dict) else None


def _json(response: httpx2.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None
