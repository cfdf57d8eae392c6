"""Models that break one promise each, all else being as in `FunctionModel`."""

# ruff: noqa: D102  (what a class says of itself is what its one method does)

from __future__ import annotations

import itertools
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from pellucid import Message, ModelDelta, ModelError, ModelResponse, TextPart, ToolCall, UriPart, Usage
from pellucid.testing import FunctionModel, Hangs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pellucid import ModelRequest
    from pellucid.models import StreamItem
    from pellucid.testing import ScriptedVendor


class Sound(FunctionModel):
    """A model that keeps the contract, with two places in which to break it."""

    def __init__(self, vendor: ScriptedVendor) -> None:
        super().__init__(vendor.play)
        self.vendor = vendor

    def asked(self, request: ModelRequest) -> ModelRequest:
        """Return what is sent for a request."""
        return request

    def answered(self, response: ModelResponse) -> ModelResponse:
        """Return what is made of an answer."""
        return response

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Answer whole."""
        return self.answered(await super().generate(self.asked(request)))

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Answer in pieces."""
        async with aclosing(super().stream(self.asked(request))) as items:  # type: ignore[type-var]  # a generator
            async for item in items:
                yield self.answered(item) if isinstance(item, ModelResponse) else item


# --- what it is -------------------------------------------------------------------------------------------------------


class Nameless(Sound):
    """Has an empty vendor's name."""

    provider_name = ""


class Renamed(Sound):
    """Is called otherwise after a call."""

    def answered(self, response: ModelResponse) -> ModelResponse:
        self.name = response.model or ""
        return response


class Deaf(Sound):
    """Asks no vendor."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        return ModelResponse(message=Message("assistant", "Yes."))


# --- answers ----------------------------------------------------------------------------------------------------------


class Reordered(Sound):
    """Turns the parts of an answer round."""

    def answered(self, response: ModelResponse) -> ModelResponse:
        return replace(response, message=Message("assistant", response.message.parts[::-1]))


class Anonymous(Sound):
    """Loses the vendor's id."""

    def answered(self, response: ModelResponse) -> ModelResponse:
        return replace(response, id=None)


class Unparsed(Sound):
    """Leaves arguments as text."""

    def answered(self, response: ModelResponse) -> ModelResponse:
        parts = [
            replace(part, arguments=repr(part.arguments)) if isinstance(part, ToolCall) else part
            for part in response.message.parts
        ]
        return replace(response, message=Message("assistant", parts))


class AlwaysDone(Sound):
    """Says that the vendor was done, whatever stopped it."""

    def answered(self, response: ModelResponse) -> ModelResponse:
        return replace(response, finish_reason="stop")


class CountsNothing(Sound):
    """Takes unknown for zero."""

    def answered(self, response: ModelResponse) -> ModelResponse:
        return replace(response, usage=Usage(input_tokens=0, output_tokens=0) + response.usage)


# --- streams ----------------------------------------------------------------------------------------------------------


class Shortened(Sound):
    """Streams an answer without its usage."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        async for item in super().stream(request):
            yield replace(item, usage=Usage()) if isinstance(item, ModelResponse) else item


class Endless(Sound):
    """Goes on after the response."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        async for item in super().stream(request):
            yield item
        yield ModelDelta("text", "and another thing")


class Unended(Sound):
    """Streams no response."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        async for item in super().stream(request):
            if isinstance(item, ModelDelta):
                yield item


class Unbroken(Sound):
    """Loses the space between words."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        async for item in super().stream(request):
            yield replace(item, content=item.content.strip()) if isinstance(item, ModelDelta) else item


class Outspoken(Sound):
    """Takes thoughts for text."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        async for item in super().stream(request):
            thought = isinstance(item, ModelDelta) and item.type == "reasoning"
            yield ModelDelta("text", item.content) if thought and isinstance(item, ModelDelta) else item


class Thoughtless(Sound):
    """Streams no reasoning."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        async for item in super().stream(request):
            if not isinstance(item, ModelDelta) or item.type != "reasoning":
                yield item


class Insistent(Sound):
    """Announces each tool call twice."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        async for item in super().stream(request):
            yield item
            if isinstance(item, ModelDelta) and item.type == "tool_call":
                yield item


class Hesitant(Sound):
    """Begins with a piece that says nothing."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        yield ModelDelta("text", "")
        async for item in super().stream(request):
            yield item


class Patient(Sound):
    """Waits for the end before it tells the beginning."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        for item in [item async for item in super().stream(request)]:
            yield item


class Scoped(Sound):
    """Holds a cancel scope while its reader has control."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        with anyio.CancelScope():
            async for item in super().stream(request):
                yield item


class Returning(Sound):
    """Is a function that returns a stream."""

    async def stream(self, request: ModelRequest) -> Any:  # type: ignore[override]
        return super().stream(request)


class Bare:
    """A stream that cannot be closed."""

    def __init__(self, items: AsyncIterator[StreamItem]) -> None:
        self._items = items

    def __aiter__(self) -> Bare:
        return self

    async def __anext__(self) -> StreamItem:
        return await anext(self._items)


class Unclosable(Sound):
    """Returns a stream without `aclose`."""

    def stream(self, request: ModelRequest) -> Any:
        return Bare(super().stream(request))


# --- requests ---------------------------------------------------------------------------------------------------------


class Greedy(Sound):
    """Takes what it needs out of the request."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        for message in request.messages:
            for call in message.tool_calls:
                if isinstance(call.arguments, dict):
                    call.arguments.clear()
        return request


class Forgetful(Sound):
    """Sends no system messages."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        return replace(request, messages=[message for message in request.messages if message.role != "system"])


class Backwards(Sound):
    """Sends the newest message first."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        return replace(request, messages=request.messages[::-1])


class Indiscreet(Sound):
    """Sends what another vendor wants back."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        foreign = [repr(getattr(part, "vendor", None)) for message in request.messages for part in message.parts]
        return replace(request, instructions=f"{request.instructions} {foreign}")


class Sorting(Sound):
    """Sends tools in an order of its own."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        return replace(request, tools=request.tools[::-1])


class Terse(Sound):
    """Sends tools without their descriptions."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        return replace(request, tools=[replace(tool, description="") for tool in request.tools])


class ToolBound(Sound):
    """Cannot do without tools."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        if not request.tools:
            raise ModelError("broken", "no tools", error_kind="invalid_request")
        return request


class OneWay(Sound):
    """Does not send what it said itself."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        return replace(request, messages=[message for message in request.messages if message.role != "assistant"])


class TextOnly(Sound):
    """Drops what is not text."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        texts = [
            Message(message.role, [part for part in message.parts if isinstance(part, TextPart)])
            for message in request.messages
        ]
        return replace(request, messages=texts)


class Unasked(Sound):
    """Drops all settings."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        return replace(request, settings={})


class Puzzled(Sound):
    """Refuses what it does not take without saying whose fault that is."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        if request.settings or any(isinstance(part, UriPart) for part in request.messages[-1].parts):
            raise ModelError("broken", "something is wrong")
        return request


class Shapeless(Sound):
    """Says that it sends the schema, and does not."""

    native_output = True

    def asked(self, request: ModelRequest) -> ModelRequest:
        return replace(request, output=None)


class Numbering(Sound):
    """Gives each request a number."""

    def __init__(self, vendor: ScriptedVendor) -> None:
        super().__init__(vendor)
        self._numbers = itertools.count()

    def asked(self, request: ModelRequest) -> ModelRequest:
        return replace(request, instructions=f"{request.instructions} ({next(self._numbers)})")


class Counting(Sound):
    """Says at the beginning how long the history is."""

    def asked(self, request: ModelRequest) -> ModelRequest:
        return replace(request, instructions=f"{request.instructions} ({len(request.messages)} messages)")


# --- failures ---------------------------------------------------------------------------------------------------------


class Soothing(Sound):
    """Makes an answer of a failure."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().generate(request)
        except ModelError as error:
            return ModelResponse(message=Message("assistant", str(error)))


class Raw(Sound):
    """Lets the vendor's exceptions through."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().generate(request)
        except ModelError as error:
            raise ConnectionError(str(error)) from error


class Vague(Sound):
    """Does not say what kind of failure it was."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().generate(request)
        except ModelError as error:
            raise ModelError("broken", str(error)) from error


class Causeless(Sound):
    """Loses the original error."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().generate(request)
        except ModelError as error:
            raise ModelError("broken", str(error), error_kind=error.error_kind) from None


class Hasty(Sound):
    """Does not say when the vendor wants to be asked again."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().generate(request)
        except ModelError as error:
            raise ModelError("broken", str(error), error_kind=error.error_kind) from error


class Persistent(Sound):
    """Asks a vendor that failed again."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        for _ in range(2):
            with suppress(ModelError):
                return await super().generate(request)
        return await super().generate(request)


class Content(Sound):
    """Takes a stream that broke off for a whole answer."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        text = ""
        try:
            async for item in super().stream(request):
                yield item
                text += item.content if isinstance(item, ModelDelta) else ""
        except ModelError:
            yield ModelResponse(message=Message("assistant", text))


# --- leaving ----------------------------------------------------------------------------------------------------------


class Stubborn(Sound):
    """Answers when it is cancelled."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().generate(request)
        except anyio.get_cancelled_exc_class():
            return ModelResponse(message=Message("assistant", "never mind"))


class Offended(Sound):
    """Takes a cancellation for a failure."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        try:
            return await super().generate(request)
        except BaseException as error:
            raise ModelError("broken", "it was cancelled", error_kind="unavailable") from error


class Leaky(Sound):
    """Leaves connections open when it is cancelled."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        if isinstance(self.vendor.receive(repr(request)), Hangs):
            await anyio.sleep_forever()
        raise AssertionError


class Held(Bare):
    """A stream that stays open when it is closed."""

    async def aclose(self) -> None:
        """Do nothing."""


class Clinging(Sound):
    """Holds on to connections of streams that were left, until it is closed itself."""

    def __init__(self, vendor: ScriptedVendor) -> None:
        super().__init__(vendor)
        self._streams: list[Any] = []

    def stream(self, request: ModelRequest) -> Any:
        self._streams.append(super().stream(request))
        return Held(self._streams[-1])

    async def aclose(self) -> None:
        for stream in self._streams:
            await stream.aclose()


# --- many at once -----------------------------------------------------------------------------------------------------


class Shared(Sound):
    """Keeps the request of a call where the next one finds it."""

    async def generate(self, request: ModelRequest) -> ModelResponse:
        self.current = request
        await anyio.lowlevel.checkpoint()
        return await super().generate(self.current)


class Settled(Sound):
    """Works only in the event loop that it saw first."""

    home: Any = None

    def asked(self, request: ModelRequest) -> ModelRequest:
        loop = anyio.lowlevel.current_token()
        self.home = self.home or loop
        if loop != self.home:
            raise RuntimeError("attached to a different loop")
        return request


class Final(Sound):
    """Is closed for all event loops when it is closed in one."""

    is_closed = False

    def asked(self, request: ModelRequest) -> ModelRequest:
        if self.is_closed:
            raise RuntimeError("it is closed")
        return request

    async def aclose(self) -> None:
        """Close it."""
        self.is_closed = True
