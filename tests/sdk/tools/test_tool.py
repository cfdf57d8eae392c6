from __future__ import annotations

import inspect
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from pellucid import Builtin, ConfigError, Hub, Tool, ToolContext, tool

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


async def run(of: Tool[Any], **arguments: Any) -> Any:
    """Run an async tool outside of an agent."""
    with anyio.fail_after(60):
        return await of.run(arguments, ToolContext(run_id="r1"))


async def test_the_decorator_makes_a_tool_of_an_async_function() -> None:
    """Name, description and schema come from the function; calling it binds the arguments."""

    @tool
    async def weather(city: str, days: int = 1) -> str:
        """Return the forecast.

        Args:
            city: Where.
            days: How many.
        """
        return f"{city} {days}"

    assert (weather.name, weather.description, weather.mode) == ("weather", "Return the forecast.", "inline")
    assert weather.input_schema["properties"]["city"] == {"type": "string", "description": "Where."}
    assert (weather.source, weather.timeout, weather.serial) == (Builtin(), None, False)
    assert await run(weather, city="Oslo") == "Oslo 1"


def test_a_sync_function_runs_in_a_thread() -> None:
    """The mode is decided once, from the function."""

    @tool
    def add(a: int, b: int) -> int:
        return a + b

    assert add.mode == "thread"
    assert add.run({"a": 1, "b": 2}, ToolContext()) == 3


def test_options_replace_what_the_function_says() -> None:
    """Each option of the decorator wins over the function."""

    @tool(name="plus", description="", timeout=2.0, serial=True)
    def add(a: int) -> int:
        """Add."""
        return a

    assert (add.name, add.description, add.timeout, add.serial) == ("plus", "", 2.0, True)


async def test_the_context_reaches_its_parameter() -> None:
    """A parameter annotated `ToolContext` receives the context, whatever it is called."""

    @tool
    async def who(*, me: ToolContext) -> str:
        return me.run_id

    assert who.input_schema["properties"] == {}
    assert await run(who) == "r1"


async def test_a_decorated_tool_is_called_as_its_function() -> None:
    """With the arguments and the result of the function, also after a provider has copied the tool."""

    @tool
    async def price(ctx: ToolContext[dict[str, float]], item: str, count: int = 1) -> float:
        """Return a price."""
        return ctx.deps[item] * count

    @tool(timeout=1.0)
    def add(a: int, b: int) -> int:
        return a + b

    ctx = ToolContext[dict[str, float]](deps={"pen": 1.5})
    assert await price(ctx, "pen") == 1.5
    assert await price(ctx=ctx, item="pen", count=2) == 3.0
    assert await price.named("other").of(Hub("shop"))(ctx, "pen") == 1.5
    assert add(1, b=2) == 3
    assert str(inspect.signature(add)) == "(a: 'int', b: 'int') -> 'int'"
    assert "function" in inspect.signature(type(add)).parameters
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'"):
        cast("Any", add)(1)


async def test_a_context_may_say_the_type_of_deps() -> None:
    """It is the context in each spelling; in the schema there are only the other parameters."""

    @tool
    async def first(ctx: ToolContext[int], item: str) -> str:
        return f"{ctx.run_id} {item}"

    async def second(item: str, ctx: "ToolContext[list[str] | None]") -> str:  # noqa: UP037
        return f"{ctx.run_id} {item}"

    for made in (first, tool(second)):
        assert list(made.input_schema["properties"]) == ["item"]
        assert await run(made, item="pen") == "r1 pen"


async def plus(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Adder:
    """Adds to a number."""

    async def __call__(self, b: int) -> int:
        """Add one."""
        return 1 + b

    async def method(self, b: int) -> int:
        """Add one as a method."""
        return 1 + b


@pytest.mark.parametrize(
    ("function", "name"),
    [(partial(plus, 1), "plus"), (Adder(), "Adder"), (Adder().method, "method")],
    ids=["partial", "object", "method"],
)
async def test_anything_that_can_be_called_is_a_tool(function: Callable[..., Any], name: str) -> None:
    """Partial functions, objects and methods are read as what they stand for, and found to be async."""
    made = tool(function)
    assert (made.name, made.mode) == (name, "inline")
    assert made.description.startswith("Add")
    assert await run(made, b=2) == 3


def test_a_wrapped_function_is_read_as_the_one_inside() -> None:
    """A decorator that follows `functools.wraps` hides nothing."""

    @lru_cache
    def square(x: int) -> int:
        """Square a number."""
        return x * x

    made = tool(square)
    assert (made.name, made.description, made.mode) == ("square", "Square a number.", "thread")
    assert made.run({"x": 3}, ToolContext()) == 9


@pytest.mark.parametrize("wrap", [lambda refund: refund, lambda refund: partial(refund, order="1"), lru_cache])
def test_a_function_that_wraps_a_tool_is_refused(wrap: Callable[[Any], Any]) -> None:
    """It would be a tool without the options of the inner one: nobody would be asked for an approval."""

    @tool(needs_approval=True)
    def refund(order: str) -> str:
        return order

    with pytest.raises(ConfigError, match="wraps the tool 'refund', whose options would be lost; apply @tool last"):
        tool(wrap(refund))


def test_a_function_that_cannot_be_described_is_refused() -> None:
    """The error comes when the tool is made, and names it."""

    def anything(*args: int) -> None:
        pass

    with pytest.raises(ConfigError, match="'anything'"):
        tool(anything)


@pytest.mark.parametrize(
    ("option", "value"),
    [("timeout", -1), ("timeout", 0), ("timeout", "x"), ("expires_in", "x"), ("expires_in", 0), ("heartbeat", -1)],
)
def test_times_that_cannot_work_are_refused(option: str, value: Any) -> None:
    """A time that is not a positive number of seconds is refused when the tool is made."""
    options: dict[str, Any] = {option: value, "execution": None if option == "timeout" else "same-invocation"}
    with pytest.raises(ConfigError, match=rf"^Tool\('work', {option}={value!r}\): must be a number of seconds above 0"):

        @tool(**options)
        def work() -> None:
            pass


def made(**changes: Any) -> Tool:
    """Return a tool with some of its attributes changed."""
    return Tool(**{"name": "a", "run": plus, "description": "d", "input_schema": {"type": "object"}, **changes})


@pytest.mark.parametrize(
    "change", [{"name": "b"}, {"description": "e"}, {"input_schema": {"type": "object", "title": "t"}}]
)
def test_the_digest_is_that_of_what_a_model_sees(change: dict[str, Any]) -> None:
    """Equal definitions have equal digests; each part of a definition counts, and nothing else."""
    assert made().digest == made(run=run, timeout=3, serial=True, mode="mcp").digest
    assert made(**change).digest != made().digest


def test_a_definition_has_the_shape_of_the_conventions() -> None:
    """A definition is recorded as it is."""
    assert made().definition.to_dict() == {
        "type": "function",
        "name": "a",
        "description": "d",
        "parameters": {"type": "object"},
    }


def test_a_broken_schema_is_found_when_arguments_are_checked() -> None:
    """Making a tool costs nothing; its validator refuses a broken schema."""
    broken = made(input_schema={"type": "objekt"})
    with pytest.raises(ValueError, match="must be a JSON object"):
        _ = broken.validator
