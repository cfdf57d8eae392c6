"""Skills: instructions and tools that a model loads when it needs them.

The active skills are read from the conversation: a skill is active once the result of a `load_skill` call contains its
instructions. So a skill stays active as long as the model can read them, also in a later run with the same history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic

from pellucid.context import DiscoveryContext
from pellucid.errors import ConfigError, ToolError
from pellucid.messages import Message, ToolCall, ToolResult
from pellucid.providers.provider import ExplainContext, Listing
from pellucid.providers.wrappers import explain_inactive
from pellucid.text import close_to
from pellucid.tools.names import LOAD_SKILL
from pellucid.tools.tool import NO_TOOLS, MetaTool, PlainFunction, Tool, tool
from pellucid.types import DepsT_contra, JSONObject

SKILLS: Final = "skills"
"""Id of the provider that lists `load_skill` and the tools of active skills."""

_ARGUMENT: Final = "skill_id"
_LONGEST: Final = 64


@dataclass(frozen=True)  # with slots, Python 3.11 cannot call `Skill[Deps](...)`
class Skill(Generic[DepsT_contra]):
    """Instructions that a model loads when it needs them, and tools that are offered once they are loaded.

    ```python
    refunds = Skill("refunds", "How to refund an order.", "Look up the order first. Then ...", tools=[refund])
    agent = Agent("support", model=model, skills=[refunds])
    ```

    Attributes:
        id: Argument of `load_skill`.
        description: Text from which the model decides whether to load the skill.
        body: Instructions; the result of `load_skill`.
        tools: Tools, or functions to convert to tools, offered from the iteration after the one that loads the skill.

    Raises:
        ConfigError: the id, the description or the body is empty, or two tools have the same name.
    """

    id: str
    description: str
    body: str
    tools: Sequence[Tool[DepsT_contra] | PlainFunction[..., object]] = NO_TOOLS

    def __post_init__(self) -> None:
        for name in ("id", "description", "body"):
            if not getattr(self, name).strip():
                raise ConfigError.empty(f"Skill {self.id!r}", name, "the model reads it")
        object.__setattr__(self, "tools", tuple(item if isinstance(item, Tool) else tool(item) for item in self.tools))
        names = [item.name for item in tools_of(self)]
        if duplicates := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"Skill {self.id!r}: two tools are called {min(duplicates)!r}; names must be unique")


class SkillProvider:
    """Provider of `load_skill`, followed by the tools of the active skills in the order of their activation.

    Attributes:
        skills: Skills by id.

    Raises:
        ConfigError: two skills have the same id, or two different tools of theirs have the same name.
    """

    id = SKILLS
    kind = "skill"
    measures_requests = True

    def __init__(self, skills: Iterable[Skill[Any]]) -> None:
        self.skills: dict[str, Skill[Any]] = {}
        owners: dict[str, tuple[Skill[Any], Tool]] = {}
        for skill in skills:
            if skill.id in self.skills:
                raise ConfigError(f"Agent(skills=...): two skills have the id {skill.id!r}; ids must be unique")
            self.skills[skill.id] = skill
            for item in tools_of(skill):
                other, same = owners.setdefault(item.name, (skill, item))
                if same is not item:
                    raise ConfigError(
                        f"Agent(skills=...): skills {other.id!r} and {skill.id!r} have different tools called "
                        f"{item.name!r}; rename one, or give both skills the same tool"
                    )
        self._loader = _loader(self.skills)

    def list_tools(self, ctx: DiscoveryContext) -> Listing:
        """Return `load_skill` and the tools of the active skills."""
        active = [self.skills[skill_id] for skill_id in ctx.active_skill_ids if skill_id in self.skills]
        return [self._loader, *dict.fromkeys(item for skill in active for item in tools_of(skill))]

    def explain(self, ctx: ExplainContext) -> None:
        """Add the inactive skills that have the tool."""
        for skill in self.skills.values():
            explain_inactive(ctx, self.id, skill.id, tools_of(skill))


def tools_of(skill: Skill[Any]) -> Sequence[Tool]:
    """Return the tools of a skill."""
    return [item for item in skill.tools if isinstance(item, Tool)]


def _loader(skills: Mapping[str, Skill[Any]]) -> Tool:
    async def load_skill(arguments: JSONObject, ctx: object) -> str:
        skill_id = str(arguments[_ARGUMENT])
        if (skill := skills.get(skill_id)) is not None:
            return skill.body
        advice = close_to(skill_id, skills) or f"Available skills: {', '.join(skills)}."
        raise ToolError(f"Unknown skill {skill_id[:_LONGEST]!r}. {advice}", error_type="unknown_skill")

    listed = "\n".join(f"- {skill.id}: {skill.description}" for skill in skills.values())
    return MetaTool(
        name=LOAD_SKILL,
        description=(
            "Load a skill before you do what it is about. The result is its instructions; tools that it brings are "
            f"available from then on. Skills:\n{listed}"
        ),
        input_schema={
            "type": "object",
            "properties": {_ARGUMENT: {"type": "string", "description": "Id of the skill."}},
            "required": [_ARGUMENT],
            "additionalProperties": False,
        },
        run=load_skill,
    )


class ActiveSkills:
    """Active skills of a conversation, read from each message once.

    Attributes:
        ids: Ids of the active skills, in the order of their activation.
    """

    def __init__(self, skills: Mapping[str, Skill[Any]]) -> None:
        self._skills = skills
        self._position = 0
        self._requests: dict[str | None, str | None] = {}
        self.ids: tuple[str, ...] = ()

    def read(self, messages: Sequence[Message]) -> tuple[str, ...]:
        """Read the new messages of the conversation, and return the ids of the active skills."""
        for message in messages[self._position :]:
            if message.role == "assistant":
                # Ids of calls are unique only within a message, so a result belongs to a call of the previous message.
                # Of two calls with the same id, the first one was run.
                self._requests = {call.id: self._skill(call) for call in reversed(message.tool_calls)}
                continue
            for part in message.parts:
                skill_id = self._requests.get(part.id) if isinstance(part, ToolResult) and not part.is_error else None
                if skill_id is not None and skill_id not in self.ids:
                    self.ids = (*self.ids, skill_id)
        self._position = len(messages)
        return self.ids

    def _skill(self, call: ToolCall) -> str | None:
        if call.name != LOAD_SKILL:
            return None
        arguments: object = call.arguments
        if isinstance(arguments, str):
            # A call with arguments that are not JSON, or nested too deeply, has failed, and its result is an error.
            with suppress(ValueError, RecursionError):
                arguments = json.loads(arguments)
        skill_id = arguments.get(_ARGUMENT) if isinstance(arguments, dict) else None
        return skill_id if isinstance(skill_id, str) and skill_id in self._skills else None
