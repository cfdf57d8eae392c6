"""Actions of readers, if the pages were started with `--allow-actions`: decide, settle, retry and cancel."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import parse_qsl, quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pellucid.approvals.decisions import Decision
from pellucid.errors import CheckpointError, ConfigError, ConversationBusy, StoreUnavailable
from pellucid_exporters.viewer.durable.parts import DurablePages, durable_of, unavailable
from pellucid_exporters.viewer.durable.sessions import COOKIE, Actions

MAX_FORM: Final = 100_000
"""Bytes of a form."""


async def sign_in(request: Request) -> Response:
    """Exchange the token of the URL for a cookie, and show the page of what waits without it."""
    actions = _actions(request)
    if not hmac.compare_digest(request.query_params.get("token", "").encode(), actions.token.encode()):
        raise HTTPException(403, "This is not the token that `pellucid view` has printed.")
    answer = RedirectResponse("/durable/waiting", 303)
    answer.set_cookie(COOKIE, actions.session, httponly=True, samesite="strict", path="/durable")
    return answer


async def answer(request: Request) -> Response:
    """Do what a form asks for, and show the page again that it was on.

    Raises:
        HTTPException: 403, it is no form of these pages; 400, it lacks something; 409, it came too late.
    """
    pages, actions = durable_of(request), _actions(request)
    form = await _form(request)
    expected = actions.form_token(request)
    if (
        expected is None
        or not _is_own(request)
        or not hmac.compare_digest(form.get("csrf", "").encode(), expected.encode())
    ):
        raise HTTPException(
            403, "This form is not one of this page. Open the address that `pellucid view` has printed."
        )
    act = _ACTIONS.get(request.path_params["action"])
    if act is None:
        raise HTTPException(404, "There is no such action.")
    try:
        await act(pages, actions, form)
    except (CheckpointError, ConfigError) as error:
        raise HTTPException(400, f"{error}.") from error
    except StoreUnavailable as error:
        raise unavailable(error) from error
    is_of_run = form.get("back") == "run"
    return RedirectResponse(f"/durable/runs/{quote(form['run'], safe='')}/" if is_of_run else "/durable/waiting", 303)


async def _decide(pages: DurablePages, actions: Actions, form: Mapping[str, str]) -> None:
    is_approved = form.get("approved")
    if is_approved not in ("yes", "no"):
        raise HTTPException(400, "Approve or deny.")
    decision = Decision(
        _given(form, "approval"),
        is_approved == "yes",
        reason=form.get("reason", "").strip() or None,
        decided_by=actions.name,
    )
    [settlement] = await pages.runs.decide(_given(form, "run"), [decision])
    _check(settlement.outcome)


async def _settle(pages: DurablePages, actions: Actions, form: Mapping[str, str]) -> None:
    error = form.get("error", "").strip()
    if not error:
        raise HTTPException(400, "Say what failed: the model reads it.")
    settlement = await pages.runs.settle(_given(form, "result"), error=error, run_id=_given(form, "run"))
    _check(settlement.outcome)


async def _retry(pages: DurablePages, actions: Actions, form: Mapping[str, str]) -> None:
    try:
        outcome = (await pages.runs.retry(_given(form, "run"), f"by {actions.name}")).outcome
    except ConversationBusy as error:
        raise HTTPException(409, f"{error}.") from error
    if outcome != "due":
        raise HTTPException(409, f"The run was not retried: it is {outcome}.")


async def _cancel(pages: DurablePages, actions: Actions, form: Mapping[str, str]) -> None:
    reason = form.get("reason", "").strip() or f"Cancelled by {actions.name}."
    outcome = (await pages.runs.cancel(_given(form, "run"), reason)).outcome
    if outcome not in ("cancelled", "requested"):
        raise HTTPException(409, f"The run was not cancelled: it is {outcome}.")


_ACTIONS: Final[Mapping[str, Callable[[DurablePages, Actions, Mapping[str, str]], Awaitable[None]]]] = {
    "decide": _decide,
    "settle": _settle,
    "retry": _retry,
    "cancel": _cancel,
}


def _actions(request: Request) -> Actions:
    actions = durable_of(request).actions
    assert actions is not None  # otherwise there are no such routes
    return actions


def _is_own(request: Request) -> bool:
    """Return whether a form comes from a page of this server; those of other ports have the cookie, too."""
    site = request.headers.get("sec-fetch-site")  # with the pages' referrer policy, browsers send no origin but `null`
    if site is not None:
        return site == "same-origin"
    return request.headers.get("origin") == f"{request.url.scheme}://{request.headers.get('host')}"


def _check(outcome: str) -> None:
    if outcome not in ("settled", "duplicate"):
        raise HTTPException(409, f"It came too late, or was answered otherwise before: {outcome}.")


def _given(form: Mapping[str, str], name: str) -> str:
    if not (value := form.get(name, "")):
        raise HTTPException(400, f"The form lacks {name!r}.")
    return value


async def _form(request: Request) -> dict[str, str]:
    """Return the members of a form."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal() or int(length) > MAX_FORM:  # browsers send the length of a form
        raise HTTPException(413, "This form is too large.")
    try:
        return dict(parse_qsl((await request.body()).decode("utf-8"), keep_blank_values=True, max_num_fields=20))
    except ValueError as error:
        raise HTTPException(400, "This is no form.") from error
