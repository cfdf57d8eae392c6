"""What a tool is, and the decorator that makes one from a function."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import Any, ClassVar, Literal, Self, TypeAlias, overload

from opentelemetry.util.types import AttributeValue
from pydantic_core import to_json

from pellucid.context import ToolContext
from pellucid.messages import ToolDefinition
from pellucid.tools.schema import Signature, Validator, name_of, signature_of
from pellucid.types import JSONObject

DispatchMode: TypeAlias = Literal["inline", "thread", "mcp"]
ToolFunction: TypeAlias = Callable[[JSONObject, ToolContext], Any]
NeedsApproval: TypeAlias = bool | Callable[[JSONObject, ToolContext], bool | Awaitable[bool]]
"""Whether a person has to approve of a call, or a function that says so of its arguments; if that fails, one has to."""


@dataclass(frozen=True, slots=True)
class Builtin:
    """A tool written in the application."""

    kind: ClassVar[str] = "builtin"
    place: ClassVar[str | None] = None

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class Mcp:
    """A tool of an MCP server."""

    kind: ClassVar[str] = "mcp"
    server: str

    @property
    def place(self) -> str:
        """The server."""
        return self.server

    def __str__(self) -> str:
        return f"{self.kind}:{self.server}"


@dataclass(frozen=True, slots=True)
class Hub:
    """A tool of a hub behind a tool provider."""

    kind: ClassVar[str] = "hub"
    provider_id: str

    @property
    def place(self) -> str:
        """The id of the provider."""
        return self.provider_id

    def __str__(self) -> str:
        return f"{self.kind}:{self.provider_id}"


ToolSource: TypeAlias = Builtin | Mcp | Hub


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool:
    """Something a model may ask for.

    Attributes:
        name: 1 to 64 characters of `[A-Za-z0-9_-]`.
        description: What the model reads to decide.
        input_schema: JSON Schema of the arguments, of type `object`.
        run: `run(arguments, ctx)`; sync (run in a worker thread) or async. Returns text, JSON-able data or a tuple of
            content parts; raises `ToolError` to choose what the model reads about a failure.
        source: Where the tool comes from.
        timeout: Seconds for one call; `Limits.tool_timeout` if not given.
        serial: Never run at the same time as another serial tool of the run.
        idempotent: Running it twice does what running it once does, so that reliability rules may try it again.
        lazy: Not offered before the model asks for it: by name, with `__lazy__tool__discovery__`; or, if it is
            `"search"`, after it was found with `tool_search`.
        tags: Further words by which `tool_search` finds it.
        needs_approval: Whether a person has to approve of each call, or a function `(arguments, ctx)` that says so.
        mode: How it is run; found out from `run` unless given.
        attributes: Further attributes of its `execute_tool` spans.
    """

    name: str
    run: ToolFunction = field(repr=False)
    description: str = ""
    input_schema: JSONObject = field(default_factory=lambda: {"type": "object", "properties": {}}, repr=False)
    source: ToolSource = Builtin()
    timeout: float | None = None
    serial: bool = False
    idempotent: bool = False
    lazy: bool | Literal["search"] = False
    tags: Sequence[str] = ()
    needs_approval: NeedsApproval = False
    mode: DispatchMode | None = None
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.mode is None:
            object.__setattr__(self, "mode", "inline" if _is_async(self.run) else "thread")

    def of(self, source: ToolSource) -> Self:
        """Return the same tool from another source; what was worked out of it already is kept."""
        return self if self.source == source else self._with("source", source)

    def searched(self) -> Self:
        """Return the same tool, but one that is found with `tool_search` before it is offered."""
        return self if self.lazy == "search" else self._with("lazy", "search")

    def _with(self, name: str, value: object) -> Self:
        made = copy.copy(self)
        object.__setattr__(made, name, value)
        return made

    def named(self, name: str) -> Self:
        """Return the same tool under another name."""
        return replace(self, name=name)

    @cached_property
    def definition(self) -> ToolDefinition:
        """The tool as a model sees it."""
        return ToolDefinition(name=self.name, description=self.description, parameters=self.input_schema)

    @cached_property
    def digest(self) -> bytes:
        """Hash of everything a model sees of the tool."""
        return digest_of(self.definition)

    @cached_property
    def tokens(self) -> int:
        """About how many tokens a model reads of the tool: four bytes of JSON each, rounded up."""
        return -(-len(to_json(self.definition.to_dict(), serialize_unknown=True)) // 4)

    @cached_property
    def validator(self) -> Validator:
        """Checks arguments. Raises ValueError if `input_schema` is broken."""
        return Validator(self.input_schema)


def digest_of(definition: ToolDefinition) -> bytes:
    """Return a hash of a definition.

    Raises:
        ValueError: it cannot be turned into JSON.
    """
    return blake2b(to_json(definition.to_dict(), serialize_unknown=True), digest_size=16).digest()


class MetaTool(Tool):
    """A tool of Pellucid's own, which a model uses to change what it is offered; its name is reserved."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BrokenTool(Tool):
    """What a provider listed and is no good as a tool; never in a catalogue.

    Attributes:
        problem: What is wrong.
    """

    problem: str


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    serial: bool = False,
    idempotent: bool = False,
    lazy: bool = False,
    tags: Sequence[str] = (),
    needs_approval: NeedsApproval = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    serial: bool = False,
    idempotent: bool = False,
    lazy: bool = False,
    tags: Sequence[str] = (),
    needs_approval: NeedsApproval = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function; its schema comes from the type hints and its descriptions from the docstring.

    ```python
    @tool
    async def weather(city: str, days: int = 1) -> str:
        "Return the forecast."
    ```

    Sync functions run in a worker thread. A parameter annotated `ToolContext` receives the context.

    Args:
        function: What to make a tool of; Google, NumPy and Sphinx docstrings are understood.
        name: Its name for the model; that of the function if not given.
        description: Its description for the model; that of the docstring if not given.
        timeout: Seconds for one call; `Limits.tool_timeout` if not given.
        serial: Never run it at the same time as another serial tool of the run.
        idempotent: Running it twice does what running it once does, so that reliability rules may try it again.
        lazy: Offer it only after the model asked for it by its name.
        tags: Further words by which `tool_search` finds it.
        needs_approval: Whether a person has to approve of each call, or a function `(arguments, ctx)` that says so.

    Raises:
        ConfigError: the function's parameters cannot be described in JSON Schema.
    """
    if function is None:
        return partial(
            _from_function,
            name=name,
            description=description,
            timeout=timeout,
            serial=serial,
            idempotent=idempotent,
            lazy=lazy,
            tags=tags,
            needs_approval=needs_approval,
        )
    return _from_function(function)


def _from_function(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    serial: bool = False,
    idempotent: bool = False,
    lazy: bool = False,
    tags: Sequence[str] = (),
    needs_approval: NeedsApproval = False,
) -> Tool:
    signature = signature_of(function, context_type=ToolContext)
    return Tool(
        name=name or name_of(function),
        description=signature.description if description is None else description,
        input_schema=signature.input_schema,
        run=_Call(function, signature) if not _is_async(function) else _AsyncCall(function, signature),
        timeout=timeout,
        serial=serial,
        idempotent=idempotent,
        lazy=lazy,
        tags=tuple(tags),
        needs_approval=needs_approval,
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """Calls a function with the keyword arguments that its signature asks for."""

    function: Callable[..., Any]
    signature: Signature

    def keywords(self, arguments: JSONObject, ctx: ToolContext) -> dict[str, Any]:
        keywords = self.signature.bind(arguments)
        if self.signature.context_parameter is not None:
            keywords[self.signature.context_parameter] = ctx
        return keywords

    def __call__(self, arguments: JSONObject, ctx: ToolContext) -> Any:
        return self.function(**self.keywords(arguments, ctx))


class _AsyncCall(_Call):
    """The same for a function that is awaited."""

    __slots__ = ()

    async def __call__(self, arguments: JSONObject, ctx: ToolContext) -> Any:
        return await self.function(**self.keywords(arguments, ctx))


def _is_async(function: Callable[..., Any]) -> bool:
    """Say whether calling `function` gives a coroutine; looks through `partial` and at `__call__`."""
    while isinstance(function, partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  (asks what the call is, not whether there is one)
