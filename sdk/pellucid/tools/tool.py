"""Tools, and the decorator that creates one from a function."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from opentelemetry.util.types import AttributeValue
from pydantic_core import to_json

from pellucid.context import ToolContext
from pellucid.errors import ConfigError
from pellucid.messages import ToolDefinition
from pellucid.module_names import renamed
from pellucid.signatures import check_names
from pellucid.tools.functions import is_async, name_of, wrapped
from pellucid.tools.hidden_bytes import may_hide
from pellucid.tools.schema import OutputValidator, Validator
from pellucid.types import DepsT, DepsT_contra, JSONObject

if TYPE_CHECKING:
    from pellucid.tools.annotations import ToolAnnotations

DispatchMode: TypeAlias = Literal["inline", "thread", "mcp"]
Execution: TypeAlias = Literal["same-invocation", "external-dispatch"]
"""Place of an asynchronous call: the background of the run, or another process."""

OnInvalidOutput: TypeAlias = Literal["error", "report"]
"""Treatment of a result that does not fit the output schema: withhold it, or let it through with an event."""

ToolFunction: TypeAlias = Callable[[JSONObject, ToolContext], Any]
NeedsApproval: TypeAlias = (
    bool | Literal["destructive"] | Callable[[JSONObject, ToolContext[Any]], bool | Awaitable[bool]]
)
"""Calls that a person must approve: all (True), none (False), or those for which a function of the arguments returns
True or fails. `destructive`: all, unless the tool's annotations say that it is read-only or not destructive."""


@dataclass(frozen=True, slots=True)
class Builtin:
    """Source of a tool that is written in the application."""

    kind: ClassVar[str] = "builtin"
    place: ClassVar[str | None] = None

    def __str__(self) -> str:
        return self.kind


@dataclass(frozen=True, slots=True)
class Mcp:
    """Source of a tool of an MCP server.

    Attributes:
        server: Name of the server.
    """

    kind: ClassVar[str] = "mcp"
    server: str

    @property
    def place(self) -> str:
        """Name of the server."""
        return self.server

    def __str__(self) -> str:
        return f"{self.kind}:{self.server}"


@dataclass(frozen=True, slots=True)
class Hub:
    """Source of a tool of a hub behind a tool provider.

    Attributes:
        provider_id: Id of the provider.
    """

    kind: ClassVar[str] = "hub"
    provider_id: str

    @property
    def place(self) -> str:
        """Id of the provider."""
        return self.provider_id

    def __str__(self) -> str:
        return f"{self.kind}:{self.provider_id}"


ToolSource: TypeAlias = Builtin | Mcp | Hub
"""Origin of a tool."""

Params = ParamSpec("Params")
ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)
FunctionT_co = TypeVar("FunctionT_co", covariant=True)


_PLAIN: Final = tuple((None, "continue", None, None, option) for option in ("error", "report", None))
"""Values of the options of asynchronous calls and of `on_invalid_output` that need no check."""


class CallKind(NamedTuple):
    """Properties of a tool that decide through which links its calls pass; see `pellucid.run.calls.chain`.

    Attributes:
        is_meta: Whether the tool discovers others.
        execution: As for `Tool`.
        serial: As for `Tool`.
        may_ask: Whether a person may have to approve calls.
        elicits: Whether calls may ask a person for input.
    """

    is_meta: bool
    execution: Execution | None
    serial: bool
    may_ask: bool
    elicits: bool = False


@renamed(deadline="expires_in")
@dataclass(frozen=True, kw_only=True, eq=False)
class Tool(Generic[DepsT_contra]):
    """Function that a model may call. `Tool[Deps]` needs a run with such `deps`; `Tool` needs none.

    Attributes:
        name: 1 to 64 characters of `[A-Za-z0-9_-]`.
        description: Text from which the model decides whether to call the tool.
        input_schema: JSON Schema of the arguments, of type `object`.
        run: `run(arguments, ctx)`; sync (run in a worker thread) or async. Returns text, JSON-able data or a tuple of
            content parts; raises `ToolError` to choose the text that the model reads about a failure.
        source: Source of the tool.
        timeout: Seconds for one call; `Limits.tool_timeout` by default.
        serial: Whether the tool never runs at the same time as another serial tool of the run.
        idempotent: Whether running it twice has the same effect as running it once, so that reliability rules may retry
            it.
        lazy: Whether the tool is offered only after the model requests it by name with `__lazy__tool__discovery__`; or,
            if it is `"search"`, after the model finds it with `tool_search`.
        tags: Additional words by which `tool_search` finds it.
        needs_approval: Whether a person must approve each call, or a function `(arguments, ctx)` that decides. With
            `destructive`, it is what the annotations say, and True without any.
        annotations: Annotations: hints, as trustworthy as the provider. No model gets them.
        execution: Where calls run while the model continues; None if it waits for their results. With
            `same-invocation`, `run` works in the background of the run; with `external-dispatch`, `run` only hands the
            work to another process, with `ctx.external`.
        pending: Whether the model continues at once with the information that an external call is running (`continue`),
            or the run ends there and the result takes the call's place once it is there (`wait`).
        expires_in: Seconds until an asynchronous call expires; for calls in the background, `timeout` by default.
        heartbeat: Seconds until a call in the background expires unless it calls `ctx.heartbeat()` or `ctx.progress()`.
        mode: Mode in which the tool is run; derived from `run` by default.
        output_schema: JSON Schema of the results, which are checked; None if it is not known. Asynchronous calls have
            none, because the model first reads that they are running.
        on_invalid_output: Treatment of a result that does not fit: `error` withholds it and tells the model where it
            does not, `report` lets it through and emits `tool.output_invalid`; None does not check results.
        attributes: Additional attributes of its `execute_tool` spans.
    """

    name: str
    run: Callable[[JSONObject, ToolContext[DepsT_contra]], Any] = field(repr=False)
    description: str = ""
    input_schema: JSONObject = field(default_factory=lambda: {"type": "object", "properties": {}}, repr=False)
    source: ToolSource = Builtin()
    timeout: float | None = None
    serial: bool = False
    idempotent: bool = False
    lazy: bool | Literal["search"] = False
    tags: Sequence[str] = ()
    needs_approval: NeedsApproval = False
    annotations: ToolAnnotations | None = None
    execution: Execution | None = None
    pending: Literal["continue", "wait"] = "continue"
    expires_in: float | None = None
    heartbeat: float | None = None
    mode: DispatchMode | None = None
    output_schema: JSONObject | None = field(default=None, repr=False)
    on_invalid_output: OnInvalidOutput | None = "error"
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.mode is None:
            object.__setattr__(self, "mode", "inline" if is_async(self.run) else "thread")
        if isinstance(self.needs_approval, str):
            from pellucid.tools.annotations import asks

            object.__setattr__(self, "needs_approval", asks(self.name, self.needs_approval, self.annotations))
        timeout: Any = self.timeout
        is_timely = timeout is None or (isinstance(timeout, int | float) and timeout > 0)
        options = (self.execution, self.pending, self.expires_in, self.heartbeat, self.on_invalid_output)
        if options not in _PLAIN or not is_timely:
            from pellucid.tools.option_checks import check_options

            check_options(self)

    def of(self, source: ToolSource) -> Self:
        """Return the same tool with another source; its cached properties are kept."""
        return self if self.source == source else self._with("source", source)

    def searched(self) -> Self:
        """Return the same tool, offered only after the model finds it with `tool_search`."""
        return self if self.lazy == "search" else self._with("lazy", "search")

    def _with(self, name: str, value: object) -> Self:
        tool = copy.copy(self)
        object.__setattr__(tool, name, value)
        return tool

    def named(self, name: str) -> Self:
        """Return the same tool under another name."""
        return replace(self, name=name)

    @cached_property
    def call_kind(self) -> CallKind:
        """Traits that decide through which links a call passes."""
        return CallKind(isinstance(self, MetaTool), self.execution, self.serial, self.needs_approval is not False)

    @cached_property
    def definition(self) -> ToolDefinition:
        """Definition of the tool, as a model sees it."""
        return ToolDefinition(
            name=self.name,
            description=self.description,
            parameters=self.input_schema,
            output_schema=self.output_schema,
        )

    @property
    def digest(self) -> bytes:
        """Hash of everything that a model sees of the tool."""
        return self._measures[0]

    @property
    def fingerprint(self) -> bytes:
        """Hash of everything that the tool says, also in its annotations; `digest` if it has none."""
        return self.digest if self.annotations is None else self.annotations.added_to(self.digest)

    @property
    def tokens(self) -> int:
        """Approximate number of tokens of the definition: four bytes of JSON each, rounded up."""
        return -(-self.size // 4)

    @property
    def size(self) -> int:
        """Bytes of the definition as JSON.

        Raises:
            ValueError: the definition cannot be encoded as JSON.
        """
        return self._measures[1]

    @property
    def may_hide(self) -> bool:
        """True if the definition may have characters that people do not see."""
        return self._measures[2]

    @cached_property
    def _measures(self) -> tuple[bytes, int, bool]:
        """Hash, size and `may_hide` of the definition, which is encoded once for all."""
        encoded = _encoded(self.definition)
        return _hash(encoded), len(encoded), may_hide(encoded)

    @cached_property
    def validator(self) -> Validator:
        """Validator of arguments.

        Raises:
            ValueError: `input_schema` is invalid.
        """
        return Validator(self.input_schema)

    @cached_property
    def output_validator(self) -> OutputValidator:
        """Validator of results, for a tool with an output schema.

        Raises:
            ValueError: `output_schema` is invalid.
        """
        return OutputValidator(self.output_schema)


def digest_of(definition: ToolDefinition) -> bytes:
    """Return a hash of a definition.

    Raises:
        ValueError: the definition cannot be encoded as JSON.
    """
    return _hash(_encoded(definition))


def _encoded(definition: ToolDefinition) -> bytes:
    return to_json(definition.to_dict(), serialize_unknown=True)


def _hash(encoded: bytes) -> bytes:
    return blake2b(encoded, digest_size=16).digest()


NO_TOOLS: Final[tuple[Tool, ...]] = ()
"""Default of parameters, from which a type checker infers that no `deps` are needed."""


class MetaTool(Tool):
    """Built-in tool with which a model changes the tools that it is offered; its name is reserved."""


@renamed(deadline="expires_in")
@dataclass(frozen=True, kw_only=True, eq=False)
class AgentTool(Tool):
    """Tool that runs an agent.

    Attributes:
        configured: Function that returns the current `pellucid.run.state.Setup` of the agent.
    """

    configured: Callable[[], Any] = field(repr=False)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Own tools of the agent."""
        tools: tuple[Tool, ...] = self.configured().tools
        return tools


@dataclass(frozen=True, kw_only=True, eq=False)
class BrokenTool(Tool):
    """Invalid tool that a provider listed; never in a catalogue.

    Attributes:
        problem: Reason why the tool is invalid.
    """

    problem: str


@dataclass(frozen=True, kw_only=True, eq=False)
class RenamedTool(Tool):
    """Tool of a server whose own name for it has characters that people do not see.

    Attributes:
        listed_name: The server's name; in a checked catalogue without these characters, which are reported once.
    """

    listed_name: str = field(repr=False)

    @property
    def may_hide(self) -> bool:
        """True, because `listed_name` is not part of the definition."""
        return True


class _Callable(Generic[FunctionT_co]):
    """Object that is called as a function of the type `FunctionT_co`."""

    if TYPE_CHECKING:
        __call__: FunctionT_co  # of variable type, so that a list of different tools is a list of tools
    else:

        def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
            return self.function(*args, **kwargs)


@renamed(deadline="expires_in")
@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionTool(_Callable[FunctionT_co], Tool[DepsT_contra], Generic[FunctionT_co, DepsT_contra]):
    """Tool of a Python function, which can be called as before: without a run, its checks and its telemetry.

    Attributes:
        function: The function, whose signature `inspect.signature` shows.
        takes_context: Whether it has a parameter for the `ToolContext`.
    """

    function: FunctionT_co = field(repr=False)
    takes_context: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "__wrapped__", self.function)  # not in the class, which is no wrapper


class ContextFunction(Protocol[Params, ResultT_co, DepsT_contra]):
    """Function whose first parameter is a `ToolContext`, which tells a type checker the `deps` that it needs.

    A function is one if it fits both signatures: the first captures its parameters, the second the type of the context.
    """

    @overload
    def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> ResultT_co: ...
    @overload
    def __call__(self, ctx: ToolContext[DepsT_contra], /, *args: Any, **kwargs: Any) -> ResultT_co: ...


class PlainFunction(Protocol[Params, ResultT_co]):
    """Function to convert to a tool. It has a `__name__`, unlike a tool, which can be called too."""

    @property
    def __name__(self) -> str:
        """Default name of the tool."""

    def __call__(self, *args: Params.args, **kwargs: Params.kwargs) -> ResultT_co:
        """Run the tool."""


class Decorator(Protocol):
    """Result of `tool(...)` with options."""

    @overload
    def __call__(
        self, function: ContextFunction[Params, ResultT, DepsT], /
    ) -> FunctionTool[Callable[Params, ResultT], DepsT]: ...
    @overload
    def __call__(self, function: Callable[Params, ResultT], /) -> FunctionTool[Callable[Params, ResultT]]: ...


class ToolOptions(TypedDict, total=False):
    """Options that a function decorated with `tool` passes on to its tool; see there."""

    timeout: float | None
    serial: bool
    idempotent: bool
    lazy: bool
    needs_approval: NeedsApproval
    annotations: ToolAnnotations | None
    execution: Execution | None
    pending: Literal["continue", "wait"]
    expires_in: float | None
    heartbeat: float | None
    output_schema: JSONObject | None
    on_invalid_output: OnInvalidOutput | None


@overload
def tool(function: ContextFunction[Params, ResultT, DepsT], /) -> FunctionTool[Callable[Params, ResultT], DepsT]: ...
@overload
def tool(function: Callable[Params, ResultT], /) -> FunctionTool[Callable[Params, ResultT]]: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, tags: Sequence[str] = (), **options: Unpack[ToolOptions]
) -> Decorator: ...
@renamed(deadline="expires_in")
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    tags: Sequence[str] = (),
    **options: Unpack[ToolOptions],
) -> Any:
    """Create a tool from a function, with a schema from its type hints and descriptions from its docstring.

    What pydantic's `Field` says of a parameter, in `Annotated` or as its default, wins over the docstring.

    ```python
    @tool
    async def weather(city: str, days: int = 1) -> str:
        "Return the forecast."
    ```

    Sync functions run in a worker thread. A parameter annotated `ToolContext` receives the context. With
    `ToolContext[Deps]`, type checkers accept the tool for agents whose `deps` are `Deps`, if it is the first parameter.

    The tool can be called as the function: `await weather("Bergen")`.

    Args:
        function: The function; Google, NumPy and Sphinx docstrings are supported.
        name: Name of the tool; the name of the function by default.
        description: Description for the model; the description in the docstring by default.
        tags: Additional words by which `tool_search` finds it.
        timeout: Seconds for one call; `Limits.tool_timeout` by default.
        serial: Whether the tool never runs at the same time as another serial tool of the run.
        idempotent: Whether running it twice has the same effect as running it once, so that reliability rules may retry
            it.
        lazy: Whether the tool is offered only after the model requests it by name.
        needs_approval: Whether a person must approve each call, a function `(arguments, ctx)` that decides, or
            `destructive`; see `Tool`.
        annotations: Annotations of the tool, a `pellucid.tools.ToolAnnotations`.
        execution: Where calls run while the model continues: `same-invocation` or `external-dispatch`; None: it waits.
        pending: `continue` or `wait`; see `Tool`.
        expires_in: Seconds until an asynchronous call expires.
        heartbeat: Seconds until a call in the background expires unless it shows that it is alive.
        output_schema: JSON Schema of the results; by default that of the annotated return type, if it is structured: a
            model, a dataclass, a typed dictionary, or a list or dictionary of a type.
        on_invalid_output: Treatment of a result that does not fit: `error`, `report`, or None; see `Tool`.

    Raises:
        TypeError: an option is unknown.
        ConfigError: an option has no meaning, the function's parameters cannot be described in JSON Schema, or it is
            or wraps a tool, whose options would be lost.
    """
    check_names("tool()", options, ToolOptions)

    def create(function: Callable[..., Any]) -> FunctionTool[Callable[..., Any]]:
        from pellucid.tools.signature import signature_of

        if isinstance(inner := wrapped(function, stop=Tool), Tool):
            raise ConfigError(
                f"tool(): the function is or wraps the tool {inner.name!r}, whose options would be lost; "
                f"apply @tool last, above other decorators, or change a tool's options with dataclasses.replace"
            )
        signature = signature_of(function, context_type=ToolContext)
        known = options
        if signature.returns is not None and "output_schema" not in options and options.get("execution") is None:
            from pellucid.tools.output_schema import output_schema_of

            known = {**options, "output_schema": output_schema_of(signature.returns)}
        return FunctionTool(
            function=function,
            takes_context=signature.context_parameter is not None,
            name=name or name_of(function),
            description=signature.description if description is None else description,
            input_schema=signature.input_schema,
            run=signature.bound(function),
            tags=tuple(tags),
            **known,
        )

    return create if function is None else create(function)
