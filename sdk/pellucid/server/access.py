"""Access: who sends a request, how many, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request

from pellucid.context import Identity
from pellucid.durable import CallRecord, DurableRuns, RunState
from pellucid.durable.runs.tokens import CallGrant
from pellucid.durable.store.values import is_storable
from pellucid.server.callers import Authenticate, authenticated, unknown_call
from pellucid.server.problems import Problem, unauthorized, unknown_run
from pellucid.server.rates import RequestRate
from pellucid.server.rights import Action, Authorize, is_allowed, owner_only


@dataclass(frozen=True, slots=True)
class Access:
    """Access of callers.

    Attributes:
        authenticate: Returns the identity of a caller.
        authorize: Returns whether it may do something.
        rate: Limit of its requests.
    """

    authenticate: Authenticate
    authorize: Authorize = owner_only
    rate: RequestRate | None = None

    async def identity(self, request: Request, action: Action) -> Identity:
        """Return the identity of a caller that may do something, which concerns no run yet; it has no roles.

        Raises:
            Problem: 401, nobody; 403, not this one; 429, not so often.
        """
        caller = await self._caller(request)
        await self._check(caller, action, None)
        return Identity(tenant=caller.tenant, principal=caller.principal, conversation_id=caller.conversation_id)

    async def run(self, request: Request, runs: DurableRuns, action: Action) -> tuple[Identity, RunState]:
        """Return the caller, and the run of a request, with which it may do something.

        Raises:
            Problem: as of `identity`; 404, there is no such run, or the caller may not read it.
        """
        caller = await self._caller(request)
        run_id = request.path_params["run_id"]
        if not is_storable(run_id):
            raise unknown_run()
        state = await runs.status(run_id)
        if not await self._allows(caller, "read", state):
            raise unknown_run()
        if action != "read":
            await self._check(caller, action, state)
        return caller, state

    async def call(self, request: Request, runs: DurableRuns) -> CallGrant:
        """Return what a caller may settle without the token of a call.

        Raises:
            Problem: 401, nothing: there is no such call, or the caller may not; 429, not so often.
        """
        caller, result_id = await self._caller(request), request.path_params["result_id"]
        call = await runs.call(result_id) if is_storable(result_id) else None
        if call is None or not await self._allows(caller, "settle", await runs.status(call.run_id)):
            raise unauthorized()
        return CallGrant(call.id, call.run_id, expires_at=0)

    async def lister(self, request: Request) -> Identity:
        """Return a caller that may list runs; of these, `may_read` says which it sees.

        Raises:
            Problem: as of `identity`.
        """
        caller = await self._caller(request)
        await self._check(caller, "list", None)
        return caller

    async def may_read(self, caller: Identity, run: RunState) -> bool:
        """Return whether a caller may read a run."""
        return await self._allows(caller, "read", run)

    async def readable_call(self, request: Request, runs: DurableRuns, action: Action) -> CallRecord:
        """Return the call of a request, of a run with which the caller may do something.

        Raises:
            Problem: as of `identity`; 404, there is no such call, or the caller may not read its run.
        """
        caller, result_id = await self._caller(request), request.path_params["result_id"]
        call = await runs.call(result_id) if is_storable(result_id) else None
        state = await runs.status(call.run_id) if call is not None else None
        if call is None or state is None or not await self._allows(caller, "read", state):
            raise unknown_call()
        if action != "read":
            await self._check(caller, action, state)
        return call

    async def _caller(self, request: Request) -> Identity:
        identity = await authenticated(request, self.authenticate)
        if self.rate is not None:
            self.rate.take(identity)
        return identity

    async def _allows(self, caller: Identity, action: Action, run: RunState | None) -> bool:
        return await is_allowed(self.authorize, caller, action, run)

    async def _check(self, caller: Identity, action: Action, run: RunState | None) -> None:
        if not await self._allows(caller, action, run):
            raise Problem(403, f"this caller may not {action} {'this run' if run is not None else 'runs'}")
