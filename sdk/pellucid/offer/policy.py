"""A policy: what it is asked, what it may answer, and how its answers are got."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
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
"""What lets a model see a tool, and activate it; `ask` leaves the call to a person."""

AT_ONCE: Final = 32
"""Questions that an async policy is asked at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRequest:
    """What a policy is asked.

    Attributes:
        stage: `offer`: may the model see the tool? `activation`: may this lazy tool be activated? `dispatch`: may the
            model make this call?
        tool: The tool.
        provider_id: Who lists it.
        agent: Name of the agent.
        run_id: The run.
        iteration: 1-based. An answer to `offer` holds for as long as the run's catalogue is the same.
        identity: On whose behalf the run happens.
        tool_call_id: The model's id of the call; at `activation` of the call that activates, None if it was in an
            earlier run of the conversation; None at `offer`.
        arguments: What the model sent, valid by the tool's schema; only at `dispatch`.
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
    """What a policy decides.

    Attributes:
        reason: Told to the model, and shown in telemetry.
    """

    permission: Permission
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.reason is not None and not isinstance(self.reason, str):
            raise ConfigError(f"Verdict({self.permission!r}, reason={self.reason!r}): reason must be a text, or None")


Policy: TypeAlias = Callable[[PermissionRequest], str | Verdict | Awaitable[str | Verdict]]
"""Decides whether a model may see and call a tool; sync or async: `allow`, `ask`, `deny`, `halt`, or a `Verdict`. With
`ask` it may see the tool, and a person decides about the call. If it raises, or answers something else, it is a no."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What came of asking.

    Attributes:
        fault: What the policy raised, which is a no.
    """

    permission: Permission
    reason: str
    fault: Exception | None = None


async def ask(policy: Policy, requests: Sequence[PermissionRequest], within: float | None) -> list[Ruling]:
    """Ask a policy, and return what it ruled of each, in order, as far as the first that ends the run.

    A sync policy is asked in a plain loop. What an async one answers is awaited for several at the same time, and no
    longer than `within` seconds for all of them. One that raises, answers something else than a permission, or does not
    answer in time, denies.
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
    """Await the first answer, and ask for and await the others meanwhile."""
    found: dict[int, Ruling] = {}
    left = enumerate(others, 1)
    over = False

    async def settle(number: int, answer: Ruling | Awaitable[object]) -> None:
        nonlocal over
        found[number] = answer if isinstance(answer, Ruling) else await _awaited(answer)
        over = over or found[number].permission == "halt"

    async def work() -> None:
        while not over and (question := next(left, None)) is not None:
            await settle(question[0], _answer(policy, question[1]))

    async def begin() -> None:
        await settle(0, first)
        await work()

    async def all_of_them() -> None:
        if not others:
            await settle(0, first)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(begin)
            for _ in range(min(AT_ONCE, 1 + len(others)) - 1):
                tasks.start_soon(work)

    missing = Ruling("deny", "the policy failed", ForeignCancellation("it was cancelled although nobody asked for it"))
    try:
        # In a task of its own, which is left behind if it does not let itself be stopped.
        await race(all_of_them, within=within)
    except OutOfTime:
        late = TimeoutError(f"no answer within {within:g} s; raise Limits.policy_timeout if that is normal")
        missing = Ruling("deny", "the policy did not answer in time", late)
    except ForeignCancellation:
        pass  # whatever has no answer is missing
    finally:
        over = True
        _close_unstarted(first)
    return _to_the_first_halt([found.get(number, missing) for number in range(1 + len(others))])


def _close_unstarted(answer: Awaitable[object]) -> None:
    if inspect.iscoroutine(answer) and inspect.getcoroutinestate(answer) == inspect.CORO_CREATED:
        answer.close()  # cancelled before its first step


def _to_the_first_halt(rulings: list[Ruling]) -> list[Ruling]:
    halt = next((number for number, ruling in enumerate(rulings) if ruling.permission == "halt"), len(rulings))
    return rulings[: halt + 1]


def _answer(policy: Policy, request: PermissionRequest) -> Ruling | Awaitable[object]:
    """Return what a policy ruled, or what has to be awaited for that."""
    try:
        answer: object = policy(request)
    except BaseException as error:  # noqa: BLE001  (the policy is the application's; its failure is a denial, and told)
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
            f"the policy answered {type(answer).__name__} instead of 'allow', 'ask', 'deny', 'halt' or a Verdict"
        )
        return Ruling("deny", "the policy gave no valid answer", fault)
    default = "the policy does not allow it" if verdict.permission != "ask" else "the policy asks a person"
    return Ruling(verdict.permission, verdict.reason or default)
