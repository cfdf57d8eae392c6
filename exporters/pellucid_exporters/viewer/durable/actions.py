"""Actions of readers, if the pages were started with `--allow-actions`: decide, settle, retry and cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from pellucid.approvals.decisions import Decision
from pellucid.errors import CheckpointError, ConfigError, ConversationBusy, StoreUnavailable
from pellucid_exporters.viewer.durable.parts import DurablePages, durable_of, unavailable
from pellucid_exporters.viewer.forms import given, own_form, signed_in
from pellucid_exporters.viewer.sessions import Actions


async def sign_in(request: Request) -> Response:
    """Exchange the token of the URL for a cookie, and show the page of what waits without it."""
    return signed_in(request, _actions(request), "/durable/waiting")


async def answer(request: Request) -> Response:
    """Do what a form asks for, and show the page again that it was on.

    Raises:
        HTTPException: 403, it is no form of these pages; 400, it lacks something; 409, it came too late.
    """
    pages, actions = durable_of(request), _actions(request)
    form = await own_form(request, actions)
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


async def _decide(pages: DurablePages, actions: Actions, form: dict[str, str]) -> None:
    is_approved = form.get("approved")
    if is_approved not in ("yes", "no"):
        raise HTTPException(400, "Approve or deny.")
    decision = Decision(
        given(form, "approval"),
        is_approved == "yes",
        reason=form.get("reason", "").strip() or None,
        decided_by=actions.name,
    )
    [settlement] = await pages.runs.decide(given(form, "run"), [decision])
    _check(settlement.outcome)


async def _settle(pages: DurablePages, actions: Actions, form: dict[str, str]) -> None:
    error = form.get("error", "").strip()
    if not error:
        raise HTTPException(400, "Say what failed: the model reads it.")
    settlement = await pages.runs.settle(given(form, "result"), error=error, run_id=given(form, "run"))
    _check(settlement.outcome)


async def _retry(pages: DurablePages, actions: Actions, form: dict[str, str]) -> None:
    try:
        outcome = (await pages.runs.retry(given(form, "run"), f"by {actions.name}")).outcome
    except ConversationBusy as error:
        raise HTTPException(409, f"{error}.") from error
    if outcome != "due":
        raise HTTPException(409, f"The run was not retried: it is {outcome}.")


async def _cancel(pages: DurablePages, actions: Actions, form: dict[str, str]) -> None:
    reason = form.get("reason", "").strip() or f"Cancelled by {actions.name}."
    outcome = (await pages.runs.cancel(given(form, "run"), reason)).outcome
    if outcome not in ("cancelled", "requested"):
        raise HTTPException(409, f"The run was not cancelled: it is {outcome}.")


_ACTIONS: Final[Mapping[str, Callable[[DurablePages, Actions, dict[str, str]], Awaitable[None]]]] = {
    "decide": _decide,
    "settle": _settle,
    "retry": _retry,
    "cancel": _cancel,
}


def _actions(request: Request) -> Actions:
    actions = durable_of(request).actions
    assert actions is not None  # otherwise there are no such routes
    return actions


def _check(outcome: str) -> None:
    if outcome not in ("settled", "duplicate"):
        raise HTTPException(409, f"It came too late, or was answered otherwise before: {outcome}.")
