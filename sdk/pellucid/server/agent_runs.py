"""Runs without a store: each lives as long as its request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pellucid.agent import Agent, configuration_of
from pellucid.errors import StoreNeeded
from pellucid.options import RunOptions
from pellucid.run.start import conversation, new_run
from pellucid.server.access import Access
from pellucid.server.attached_runs import AttachedRun
from pellucid.server.bodies import BodyReader
from pellucid.server.draining import Draining
from pellucid.server.problems import Problem, store_needed
from pellucid.server.submissions import SubmitBody, agent_named, input_of, tags_of
from pellucid.telemetry import Listeners
from pellucid.tools.tool import AgentTool, Tool

_METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def refuse_external(tools: Iterable[Tool]) -> None:
    """Refuse tools whose work another process does, also those of agents that are tools.

    Raises:
        StoreNeeded: there is one.
    """
    for tool in tools:
        if tool.execution == "external-dispatch":
            raise StoreNeeded(tool.name)
        if isinstance(tool, AgentTool):
            refuse_external(tool.tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEndpoints:
    """`POST /runs` of a server without a store.

    Attributes:
        agents: The agents by name.
        access: Access of callers.
        roles: Roles of the messages that callers may send.
        deps: Value for tools.
        heartbeat: Seconds between comments in a stream without events.
        timeout: Seconds that a run may take.
        bodies: Reader of bodies.
        draining: Ends runs when the server shuts down.
    """

    agents: Mapping[str, Agent[Any, Any]]
    access: Access
    roles: frozenset[str]
    deps: Any
    heartbeat: float
    timeout: float
    bodies: BodyReader
    draining: Draining

    def routes(self) -> list[Route]:
        """Return the routes; those of runs in a store say that there is none."""
        return [
            Route("/runs", self._run, methods=["POST"]),
            Route("/runs/{path:path}", _no_store, methods=_METHODS),
            Route("/conversations/{path:path}", _no_store, methods=_METHODS),
            Route("/async-tools/{path:path}", _no_store, methods=_METHODS),
        ]

    async def _run(self, request: Request) -> AttachedRun:
        caller = await self.access.identity(request, "submit")
        if "respond-async" in request.headers.get("prefer", ""):
            raise store_needed("Prefer")
        if "idempotency-key" in request.headers:
            raise store_needed("Idempotency-Key")
        body = await self.bodies.read(request, SubmitBody)
        if body.callback_url is not None:
            raise store_needed("callbackUrl")
        agent = self.agents[agent_named(body.agent, list(self.agents))]
        identity = replace(caller, conversation_id=body.conversation_id or caller.conversation_id)
        options: RunOptions = {"identity": identity, "tags": tags_of(body)}
        is_streamed = "text/event-stream" in request.headers.get("accept", "")
        run = new_run(
            configuration_of(agent),
            conversation((), input_of(body, self.roles)),
            self.deps,
            options,
            stream=Listeners() if is_streamed else None,
            check_tools=refuse_external,
        )
        return AttachedRun(run, heartbeat=self.heartbeat, timeout=self.timeout, draining=self.draining)


def _no_store(_request: Request) -> Response:
    raise Problem(404, "this server has no store: nothing outlives its request; serve the agents with a store")
