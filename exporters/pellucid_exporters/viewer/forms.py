"""Forms of the pages: who has signed in, and what a form of these pages says."""

from __future__ import annotations

import hmac
from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pellucid_exporters.viewer.sessions import COOKIE, Actions

MAX_FORM: Final = 100_000
"""Bytes of a form."""


def signed_in(request: Request, actions: Actions, target: str) -> Response:
    """Exchange the token of the URL for a cookie, and show a page without it.

    Raises:
        HTTPException: 403, it is another token.
    """
    if not hmac.compare_digest(request.query_params.get("token", "").encode(), actions.token.encode()):
        raise HTTPException(403, "This is not the token that `pellucid view` has printed.")
    answer = RedirectResponse(target, 303)
    answer.set_cookie(COOKIE, actions.session, httponly=True, samesite="strict", path="/")
    return answer


async def own_form(request: Request, actions: Actions) -> dict[str, str]:
    """Return the members of a form of these pages.

    Raises:
        HTTPException: 403, it is none; 400 or 413, it is no form, or too large.
    """
    form, expected = await _form(request), actions.form_token(request)
    if (
        expected is None
        or not _is_own(request)
        or not hmac.compare_digest(form.get("csrf", "").encode(), expected.encode())
    ):
        raise HTTPException(
            403, "This form is not one of this page. Open the address that `pellucid view` has printed."
        )
    return form


def given(form: dict[str, str], name: str) -> str:
    """Return a member of a form.

    Raises:
        HTTPException: 400, it is missing.
    """
    if not (value := form.get(name, "")):
        raise HTTPException(400, f"The form lacks {name!r}.")
    return value


def _is_own(request: Request) -> bool:
    """Return whether a form comes from a page of this server; those of other ports have the cookie, too."""
    site = request.headers.get("sec-fetch-site")  # with the pages' referrer policy, browsers send no origin but `null`
    if site is not None:
        return site == "same-origin"
    return request.headers.get("origin") == f"{request.url.scheme}://{request.headers.get('host')}"


async def _form(request: Request) -> dict[str, str]:
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > MAX_FORM:  # browsers send the length of a form
        raise HTTPException(413, "This form is too large.")
    try:
        return dict(parse_qsl((await request.body()).decode("utf-8"), keep_blank_values=True, max_num_fields=20))
    except ValueError as error:
        raise HTTPException(400, "This is no form.") from error
