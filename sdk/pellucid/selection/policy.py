"""Permission policies: the request, the verdict, and how a policy is called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal, TypeAlias, get_args

import anyio

from pellucid.concurrency.race import ForeignCancellation, OutOfTime, race
from pellucid.context import Identity
from pellucid.errors import ConfigError
from pellucid.failures import contained
from pellucid.tools.tool import Tool
from pellucid.types import JSONObject

Stage: TypeAlias = Literal["offer", "activation", "dispatch"]
Permission: TypeAlias = Literal["allow", "ask", "deny", "halt"]
PERMISSIONS: Final = get_args(Permission)
PERMITTED: Final = ("allow", "ask")
"""Permissions with which a tool may be offered and activated; `ask` leaves the call to a person."""

MAX_CONCURRENT: Final = 32
"""Maximum number of concurrent calls of an async policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRequest:
    """A request to a permission policy.

    Attributes:
        stage: `offer`: may the model see the tool? `activation`: may this lazy tool be activated? `dispatch`: may the
            model make this call?
        tool: The tool.
        provider_id: Id of the provider that lists it.
        agent: Name of the agent.
        run_id: Id of the run.
        iteration: 1-based. A verdict at `offer` holds for as long as the run's catalogue is the same.
        identity: Identity on whose behalf the run acts.
        tool_call_id: The model's id of the call. At `activation`, that of the call that activates the tool, or None if
            an earlier run of the conversation activated it. None at `offer`.
        arguments: The model's arguments, valid by the tool's schema; only at `dispatch`.
    """

    stage: Stage
    tool: Tool
    provider_id: str
    agent: str = ""
    run_id: str = ""
    iteration: int = 1
    identity: Identity | None = None
    tool_call_id: str | None = None
    arguments: JSONObject | None = None

    @property
    def tool_name(self) -> str:
        """Name of the tool."""
        return self.tool.name


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision of a policy.

    Attributes:
        permission: `allow`, `ask`, `deny` or `halt`.
        reason: Reason for the model and for telemetry.
    """

    permission: Permission
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None and not isinstance(self.reason, str):
            raise ConfigError(f"Verdict({self.permission!r}, reason={self.reason!r}): reason must be a text, or None")


Policy: TypeAlias = Callable[[PermissionRequest], str | Verdict | Awaitable[str | Verdict]]
"""Decides whether a model may see and call a tool; sync or async. It returns `allow`, `ask`, `deny`, `halt` or a
`Verdict`. With `ask` the model may see the tool, and a person decides about the call. A policy that raises or returns
anything else denies."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """Outcome of a permission request.

    Attributes:
        permission: The permission.
        reason: Reason given by the policy, or a default.
        fault: Exception of the policy, if it failed; then the permission is `deny`.
    """

    permission: Permission
    reason: str
    fault: Exception | None = None


async def ask(policy: Policy, requests: Sequence[PermissionRequest], within: float | None) -> list[Ruling]:
    """Call a policy for each request, and return its rulings in order, up to the first halt.

    A sync policy is called in a plain loop. Calls of an async policy run concurrently, within `within` seconds in all.
    A policy that raises, returns anything other than a permission, or does not decide in time denies.
    """
    rulings: list[Ruling] = []
    for index, request in enumerate(requests):
        answer = _answer(policy, request)
        if not isinstance(answer, Ruling):
            return [*rulings, *await _ask_together(policy, answer, requests[index + 1 :], within)]
        rulings.append(answer)
        if answer.permission == "halt":
            break
    return rulings


async def _ask_together(
    policy: Policy, first: Awaitable[object], others: Sequence[PermissionRequest], within: float | None
) -> list[Ruling]:
    """Await the first answer, and concurrently call the policy for the other requests."""
    rulings: dict[int, Ruling] = {}
    is_ended = False
    later = (_answer(policy, request) for request in others if not is_ended)
    answers = enumerate(chain([first], later))

    async def work() -> None:
        nonlocal is_ended
        for number, answer in answers:
            rulings[number] = ruling = answer if isinstance(answer, Ruling) else await _awaited(answer)
            is_ended = is_ended or ruling.permission == "halt"

    async def work_concurrently() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(min(MAX_CONCURRENT, 1 + len(others))):
                tasks.start_soon(work)

    missing = Ruling("deny", "the policy failed", ForeignCancellation("it was cancelled, but not by the run"))
    try:
        # In a task of its own, which is abandoned if it ignores cancellation.
        await race(work_concurrently if others else work, within=within)
    except OutOfTime:
        late = TimeoutError(f"no answer within {within:g} s; raise Limits.policy_timeout if that is normal")
        missing = Ruling("deny", "the policy did not answer in time", late)
    except ForeignCancellation:
        pass  # requests without an answer get the ruling `missing`
    finally:
        is_ended = True
        if inspect.iscoroutine(first) and inspect.getcoroutinestate(first) == inspect.CORO_CREATED:
            first.close()  # cancelled before its first step
    in_order = [rulings.get(number, missing) for number in range(1 + len(others))]
    halt = next((number for number, ruling in enumerate(in_order) if ruling.permission == "halt"), len(in_order))
    return in_order[: halt + 1]


def _answer(policy: Policy, request: PermissionRequest) -> Ruling | Awaitable[object]:
    """Return the ruling of a policy, or an awaitable of its answer."""
    try:
        answer: object = policy(request)
    except BaseException as error:  # noqa: BLE001  (the policy is the application's; its failure is a reported denial)
        return Ruling("deny", "the policy failed", contained(error))
    return answer if inspect.isawaitable(answer) else _ruling(answer)


async def _awaited(answer: Awaitable[object]) -> Ruling:
    try:
        return _ruling(await answer)
    except BaseException as error:  # noqa: BLE001  (as above)
        return Ruling("deny", "the policy failed", contained(error))


def _ruling(answer: object) -> Ruling:
    verdict = answer if isinstance(answer, Verdict) else Verdict(answer)  # type: ignore[arg-type]  # checked next
    if verdict.permission not in PERMISSIONS:
        fault = TypeError(
            f"the policy returned {type(answer).__name__} instead of 'allow', 'ask', 'deny', 'halt' or a Verdict"
        )
        return Ruling("deny", "the policy gave no valid answer", fault)
    default = "the policy does not allow it" if verdict.permission != "ask" else "the policy asks a person"
    return Ruling(verdict.permission, verdict.reason or default)
