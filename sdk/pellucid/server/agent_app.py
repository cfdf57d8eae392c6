"""The ASGI application of runs without a store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette

from pellucid.agent import Agent, configuration_of
from pellucid.errors import ConfigError
from pellucid.messages import Role
from pellucid.server.access import Access
from pellucid.server.agent_runs import AgentEndpoints
from pellucid.server.assembly import MAX_BODY, assemble
from pellucid.server.bodies import BodyReader
from pellucid.server.callers import Authenticate, loopback_only
from pellucid.server.draining import Draining
from pellucid.server.openapi import document_without_store
from pellucid.server.pages import page_guard
from pellucid.server.problems import Problem
from pellucid.server.rates import RequestRate
from pellucid.server.rights import Authorize, owner_only
from pellucid.telemetry import Pipeline

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def create_agent_app(
    agents: Iterable[Agent[Any, Any]],
    *,
    authenticate: Authenticate = loopback_only,
    authorize: Authorize = owner_only,
    rate: RequestRate | None = None,
    roles: Iterable[Role] = ("user",),
    origins: Iterable[str] = (),
    hosts: Iterable[str] | None = None,
    deps: Any = None,
    metrics: ASGIApp | None = None,
    max_body: int = MAX_BODY,
    heartbeat: float = 15.0,
    timeout: float = 600.0,
    body_timeout: float = 30.0,
    telemetry: Pipeline | None = None,
) -> Starlette:
    """Return the application that runs agents over HTTP, without a store: each run lives as long as its request.

    A client that leaves cancels its run. An agent with a tool of `execution="external-dispatch"` is refused before its
    model is called, with 422. `app.state.drain()` ends open runs, so that the server can shut down.

    Args:
        agents: The agents.
        authenticate: Returns the identity of a caller, or None to refuse. By default callers must be on this machine.
        authorize: Returns whether a caller may `submit`; by default all may.
        rate: Limit of the requests of each caller; there is none by default.
        roles: Roles of the messages that callers may send as `input`. With `assistant` or `tool`, they can say that
            tools or people have answered what they have not.
        origins: Origins whose web pages may send requests, such as `https://app.example.org`.
        hosts: Names under which the server answers, besides IP addresses; None for any name, or with `loopback_only`
            for those of this machine.
        deps: Value for tools, `ToolContext.deps`.
        metrics: Application to serve at `/metrics`.
        max_body: Bytes of a request's body; a longer one is answered with 413.
        heartbeat: Seconds between comments in a stream without events.
        timeout: Seconds that a run may take; then it fails.
        body_timeout: Seconds in which the body of a request must arrive; a later one is answered with 408.
        telemetry: Destination of the span and the metric of each request, as the option of an agent. There are none if
            the application has instrumentation of its own.

    Raises:
        ConfigError: there is no agent, or two have the same name.
    """
    listed = list(agents)
    by_name = {agent.name: agent for agent in listed}
    if not by_name or len(by_name) < len(listed):
        names = [agent.name for agent in listed]
        raise ConfigError(f"create_agent_app: give one or more agents of different names, not {names}")

    async def check() -> None:
        not_ready = [agent.name for agent in listed if not agent.ready() and configuration_of(agent).setup.is_warm]
        if not_ready:
            raise Problem(503, f"tool providers have not answered yet, of the agents {', '.join(not_ready)}")

    access = Access(authenticate, authorize, rate)
    draining = Draining()
    endpoints = AgentEndpoints(
        agents=by_name,
        access=access,
        roles=frozenset(roles),
        deps=deps,
        heartbeat=heartbeat,
        timeout=timeout,
        bodies=BodyReader(max_body, body_timeout),
        draining=draining,
    )
    return assemble(
        endpoints.routes(),
        check=check,
        description=document_without_store(has_metrics=metrics is not None),
        draining=draining,
        guard=page_guard(origins, hosts, is_local=authenticate is loopback_only),
        metrics=metrics,
        telemetry=telemetry,
    )
