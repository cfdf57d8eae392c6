"""Rights: what a caller may do with which run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from inspect import isawaitable
from typing import Final, Literal, TypeAlias

from pellucid.context import Identity
from pellucid.durable import RunState

Action: TypeAlias = Literal["submit", "read", "list", "cancel", "decide", "settle", "retry", "score"]
"""Action of a request: submit a run, read it, list runs, cancel one, decide about its approvals, settle an external
call without the token of that call, retry: continue a run that has ended, or send its state to the callback URL again,
or score a run."""

OPERATOR: Final = "operator"
APPROVER: Final = "approver"


@dataclass(frozen=True, slots=True)
class Caller(Identity):
    """Identity of a caller, with its roles; `authenticate` may return one instead of an `Identity`.

    Attributes:
        roles: Names of roles, such as `operator` and `approver`.
    """

    roles: frozenset[str] = frozenset()


Authorize: TypeAlias = Callable[[Identity, Action, RunState | None], bool | Awaitable[bool]]
"""Returns whether a caller may do something. The run is None for `submit` and `list`.

Whoever may not `read` a run gets the same 404 as for one that does not exist; any other refusal is 403. A list has the
runs that the caller may read; the run that is asked about then has no content: neither messages, calls nor output.
"""


def owner_only(caller: Identity, action: Action, run: RunState | None) -> bool:
    """Allow the owner of a run, the same tenant and principal, all but to settle its external calls."""
    return action != "settle" and (run is None or _key(caller) == _key(_owner(run)))


def same_tenant(caller: Identity, action: Action, run: RunState | None) -> bool:
    """Allow each principal of the run's tenant all but to settle its external calls."""
    return action != "settle" and (run is None or caller.tenant == _owner(run).tenant)


def by_role(caller: Identity, action: Action, run: RunState | None) -> bool:
    """Allow the owner what `owner_only` does, and roles of the run's tenant more.

    An `operator` may also read, cancel, settle, retry and score; an `approver` may also read, decide and score.
    """
    if owner_only(caller, action, run):
        return True
    if run is None or caller.tenant != _owner(run).tenant:
        return False
    roles = caller.roles if isinstance(caller, Caller) else frozenset[str]()
    return (action in _OPERATES and OPERATOR in roles) or (action in _APPROVES and APPROVER in roles)


def four_eyes(authorize: Authorize) -> Authorize:
    """Return `authorize`, but refuse to let the principal that has submitted a run decide about its approvals.

    A caller without a principal may not decide at all: nothing identifies it.
    """

    async def with_four_eyes(caller: Identity, action: Action, run: RunState | None) -> bool:
        if action == "decide" and run is not None and caller.principal in (None, _owner(run).principal):
            return False
        return await is_allowed(authorize, caller, action, run)

    return with_four_eyes


async def is_allowed(authorize: Authorize, caller: Identity, action: Action, run: RunState | None) -> bool:
    """Return whether `authorize` allows an action."""
    answer = authorize(caller, action, run)
    return (await answer) if isawaitable(answer) else answer


_OPERATES: Final = frozenset({"read", "cancel", "settle", "retry", "score"})
_APPROVES: Final = frozenset({"read", "decide", "score"})


def _owner(run: RunState) -> Identity:
    return run.identity or Identity()


def _key(identity: Identity) -> tuple[str | None, str | None]:
    return identity.tenant, identity.principal
