"""The contract of models: the guarantees of every `Model`, as tests to inherit.

```python
from pellucid.testing import Answers, Fails, Hangs, ModelContract, ScriptedVendor


class TestMyModel(ModelContract):
    lacks = ("top_k", "video")

    def model_that(self, vendor: ScriptedVendor) -> MyModel:
        def reply(body: bytes) -> bytes:
            match vendor.receive(body):
                case Answers(response): ...  # in the vendor's format
                case Fails(kind=kind): ...  # HTTP 429 for "rate_limited", and so on
                case Hangs(text=text): ...  # call vendor.leave() when the client disconnects
        return MyModel(transport=Double(reply))
```

The tests run under anyio's pytest plugin, on asyncio and trio. Override the fixture `anyio_backend` in a class to
select the backend.
"""

from __future__ import annotations

import copy
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import pytest

from pellucid.errors import ErrorKind
from pellucid.messages import FinishReason, Message, ReasoningPart
from pellucid.models import Model, ModelDelta, ModelResponse, StreamItem
from pellucid.models.alternatives import candidates
from pellucid.testing import samples
from pellucid.testing.asking import (
    Bench,
    Way,
    answer,
    ask,
    assert_contains,
    assert_same,
    changed_text,
    close,
    content_of,
    failure,
    identity,
    open_stream,
    read,
    sent,
    wait_until,
)
from pellucid.testing.samples import question
from pellucid.testing.vendor import Deed, Fails, Hangs

both_ways = pytest.mark.parametrize("way", ["whole", "streamed"])


class ModelContract(Bench):
    """Tests of the guarantees of every model. Inherit them in a class named `Test...`, and define `model_that`.

    Attributes:
        lacks: Features that the vendor's API does not have; see `pellucid.testing.samples.FEATURES`. The vendor's
            answers do not use them, and a request that needs one must be refused with a `ModelError` of the kind
            `invalid_request`.
        blind_to: Observations that the vendor's double does not support: `requests` if `ScriptedVendor.receive` does
            not receive the whole body, `connections` if `ScriptedVendor.leave` is not called. Assertions that need
            them are skipped.
        patience: Seconds that a test may take.
    """

    pytestmark: ClassVar[Any] = pytest.mark.anyio

    # --- identity -----------------------------------------------------------------------------------------------------

    async def test_it_is_a_model_with_a_stable_name(self) -> None:
        """A model has the protocol's methods, and a name and a vendor that a call does not change."""
        async with self._model(self._answers("text")) as (model, _):
            assert isinstance(model, Model), f"{type(model).__name__} lacks a member of pellucid.models.Model"
            before = identity(model)
            for name, value in zip(("name", "provider_name"), before, strict=False):
                assert isinstance(value, str), f"{name} is {value!r}; telemetry needs a string"
                assert value, f"{name} is empty; telemetry needs it"
            await answer(model, question(), "whole")
            assert identity(model) == before, "a call changed the model's name, provider_name or server"

    # --- answers ------------------------------------------------------------------------------------------------------

    @both_ways
    @pytest.mark.parametrize("sample", samples.ANSWERS)
    async def test_answers_are_those_of_the_vendor(self, sample: str, way: Way) -> None:
        """Parts, order, finish reason, id, model and usage of a response are the vendor's."""
        answers = self._answers(sample)
        async with self._model(answers) as (model, _):
            assert_same(await answer(model, question(), way), answers.response)

    @both_ways
    @pytest.mark.parametrize("reason", samples.FINISH_REASONS)
    async def test_finish_reasons_are_told(self, reason: FinishReason, way: Way) -> None:
        """The finish reason of a response is the vendor's."""
        if reason in self.lacks:
            reason = "stop"
        answers = self._answers("tool_call" if reason == "tool_call" else "text", finish_reason=reason)
        async with self._model(answers) as (model, _):
            actual = (await answer(model, question(), way)).finish_reason
            assert actual == reason, f"the vendor stopped because of {reason!r}, the response says {actual!r}"

    @both_ways
    @pytest.mark.parametrize("counted", samples.USAGE)
    async def test_usage_is_exact_and_unknown_is_none(self, counted: str, way: Way) -> None:
        """Token counts are the vendor's, also of cached and reasoning tokens; counts that it omits are None."""
        answers = self._answers("text", usage=samples.USAGE[counted])
        async with self._model(answers) as (model, _):
            usage = (await answer(model, question(), way)).usage
            assert usage == answers.response.usage, (
                "the usage is not the vendor's: unknown counts are None and never 0, cached tokens are part of the "
                "input, reasoning tokens of the output"
            )

    # --- streams ------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("sample", samples.ANSWERS)
    async def test_streamed_and_whole_are_equal(self, sample: str) -> None:
        """A stream ends with the response that `generate` returns."""
        async with self._model(self._answers(sample)) as (model, _):
            whole = await answer(model, question(), "whole")
            streamed = await answer(model, question(), "streamed")
            assert streamed == whole, "the streamed answer is not the one that generate() returns"

    @pytest.mark.parametrize("sample", samples.ANSWERS)
    async def test_a_stream_ends_with_the_response(self, sample: str) -> None:
        """A stream yields deltas, then exactly one ModelResponse."""
        async with self._model(self._answers(sample)) as (model, _):
            items = await read(model, question())
            assert items, "the stream yielded nothing"
            assert isinstance(items[-1], ModelResponse), f"the stream ends with {items[-1]!r}, not with a ModelResponse"
            unexpected = [item for item in items[:-1] if not isinstance(item, ModelDelta)]
            assert unexpected == [], "something other than a ModelDelta comes before the last item of the stream"

    @pytest.mark.parametrize("sample", samples.ANSWERS)
    async def test_deltas_make_up_the_answer(self, sample: str) -> None:
        """Text and reasoning of the deltas join to those of the answer, and each tool call is announced by name."""
        async with self._model(self._answers(sample)) as (model, _):
            *deltas, last = await read(model, question())
            assert isinstance(last, ModelResponse), "the stream does not end with a ModelResponse"
            parts = last.message.parts
            assert content_of(deltas, "text") == last.message.text, "deltas of text do not join to the answer's text"
            reasoning = "".join(part.content for part in parts if isinstance(part, ReasoningPart))
            assert content_of(deltas, "reasoning") == reasoning, "the deltas of reasoning do not join to the answer's"
            announced = [item.content for item in deltas if isinstance(item, ModelDelta) and item.type == "tool_call"]
            called = [call.name for call in last.message.tool_calls]
            assert announced == called, "a delta must announce each tool call once, by name, in the order of the answer"
            empty = [item for item in deltas if isinstance(item, ModelDelta) and not item.content]
            assert empty == [], "a delta is empty; time to first chunk would be wrong"

    async def test_pieces_are_yielded_as_they_arrive(self) -> None:
        """The first piece of a stream is yielded before the vendor has completed its answer."""
        async with self._model(Hangs(text="Half an answer")) as (model, _):
            items = open_stream(model, question())
            first = await anext(items)
            assert isinstance(first, ModelDelta), f"the first piece of an incomplete answer is {first!r}"
            await close(items)

    async def test_a_stream_can_be_read_from_anywhere(
        self, anyio_backend_name: str, anyio_backend_options: dict[str, Any]
    ) -> None:
        """A stream holds no cancel scope or task group open while its reader has control."""

        async def read_in_two_places() -> None:
            items = open_stream(model, question())
            with anyio.CancelScope():
                await anext(items)
            async for _ in items:
                pass
            await close(model)

        async with self._model(self._answers("text")) as (model, _):
            # In a separate event loop, because a cancel scope that stays open would break this one.
            run = partial(
                anyio.run, read_in_two_places, backend=anyio_backend_name, backend_options=anyio_backend_options
            )
            try:
                await anyio.to_thread.run_sync(run)
            except Exception as error:
                raise AssertionError(
                    "reading the first piece of a stream inside a cancel scope and the others outside of it "
                    "failed; no cancel scope or task group may be open at a yield"
                ) from error

    # --- requests -----------------------------------------------------------------------------------------------------

    @both_ways
    async def test_the_request_is_not_changed(self, way: Way) -> None:
        """A model does not change the request, which is used again."""
        request = self._long_request()
        before = copy.deepcopy(request)
        async with self._model(self._answers("text")) as (model, _):
            await answer(model, request, way)
            assert request == before, "the model changed the request"

    @both_ways
    async def test_the_history_is_sent_in_order(self, way: Way) -> None:
        """Instructions, texts, tool calls and results of all kinds reach the vendor, in order."""
        async with self._model(self._answers("text")) as (model, vendor):
            await answer(model, self._long_request(), way)
            if "requests" in self.blind_to:
                return
            [body] = sent(vendor)
            assert_contains(body, "INSTRUCTIONS", "STANDINGORDER", *chain.from_iterable(samples.IN_ORDER))
            places = [[body.index(word) for word in group] for group in samples.IN_ORDER]
            for before, after, words in zip(places, places[1:], samples.IN_ORDER[1:], strict=False):
                assert max(before) < min(after), f"{words} is sent before earlier messages"
            assert "FOREIGNSIGNATURE" not in body, "another vendor's data was sent to this one"

    @both_ways
    async def test_tools_are_sent(self, way: Way) -> None:
        """Name, description and parameters of each tool reach the vendor, in order."""
        async with self._model(self._answers("text")) as (model, vendor):
            await answer(model, question(), way)
            if "requests" not in self.blind_to:
                words = ("TOOLDESCRIPTION", "PARAMETERDESCRIPTION", "OTHERDESCRIPTION", "lookup_other")
                [body] = sent(vendor)
                assert_contains(body, *words)
                first, last = (body.index(word) for word in ("TOOLDESCRIPTION", "OTHERDESCRIPTION"))
                assert first < last, "the tools are not sent in the order of the request"

    @both_ways
    async def test_a_closing_answer_needs_no_tools(self, way: Way) -> None:
        """A history with tool calls is accepted in a request without tools."""
        answers = self._answers("text")
        async with self._model(answers) as (model, vendor):
            assert_same(
                await answer(model, question(messages=samples.HISTORY, tools=()), way, "to a request without tools"),
                answers.response,
            )
            if "requests" not in self.blind_to:
                assert "TOOLDESCRIPTION" not in sent(vendor)[0], "a tool was sent that is not in the request"

    @both_ways
    @pytest.mark.parametrize("sample", samples.ANSWERS)
    async def test_an_answer_can_be_given_back(self, sample: str, way: Way) -> None:
        """The model's answer is accepted unchanged as history."""
        async with self._model(self._answers(sample)) as (model, vendor):
            message = (await answer(model, question(), way)).message
            history = question(messages=samples.history_after(message))
            await answer(model, history, way, "to a history with its own answer")
            if "requests" not in self.blind_to and message.text:
                assert_contains(sent(vendor, 2)[1], "ANSWERTEXT")

    @both_ways
    @pytest.mark.parametrize("content", samples.CONTENTS)
    async def test_content_is_sent_or_refused(self, content: str, way: Way) -> None:
        """Images, documents and other parts reach the vendor, or the request is refused; none is dropped silently."""
        part, mark = samples.CONTENTS[content]
        await self._sent_or_refused(content, question(messages=samples.with_content(part)), mark, way)

    @both_ways
    @pytest.mark.parametrize("setting", samples.SETTINGS)
    async def test_settings_are_sent_or_refused(self, setting: str, way: Way) -> None:
        """A setting reaches the vendor unchanged, or the request is refused; none is dropped silently."""
        settings, mark = samples.SETTINGS[setting]
        await self._sent_or_refused(setting, question(settings=settings), mark, way)

    @both_ways
    async def test_a_schema_for_the_answer_is_accepted(self, way: Way) -> None:
        """A request may have a schema for the answer; a model with `native_output` sends it."""
        async with self._model(self._answers("text")) as (model, vendor):
            await answer(model, question(output=samples.OUTPUT), way)
            if getattr(model, "native_output", False) and "requests" not in self.blind_to:
                assert_contains(sent(vendor)[0], "OUTPUTPROPERTY")

    @both_ways
    async def test_equal_requests_are_sent_alike(self, way: Way) -> None:
        """Two equal requests are sent as the same bytes, so that prompt caches apply."""
        async with self._model(self._answers("text")) as (model, vendor):
            for _ in range(2):
                await answer(model, self._long_request(), way)
            if "requests" not in self.blind_to:
                first, second = sent(vendor, 2)
                assert first == second, "two equal requests were sent as different bytes"

    async def test_a_longer_history_begins_like_the_shorter_one(self) -> None:
        """An additional message does not change the text that is sent before it, so that prompt caches apply."""
        request = self._long_request()
        follow = (Message("assistant", "So it goes."), Message("user", "Anything else?"))
        longer = question(instructions=request.instructions, messages=(*request.messages, *follow))
        async with self._model(self._answers("text")) as (model, vendor):
            for history in (request, longer):
                await answer(model, copy.deepcopy(history), "whole")
            if "requests" in self.blind_to:
                return
            first, second = sent(vendor, 2)
            changed = changed_text(first, second)
            assert changed == "", f"the text before an additional message has changed: {changed!r}"

    # --- failures -----------------------------------------------------------------------------------------------------

    @both_ways
    @pytest.mark.parametrize("kind", samples.KINDS)
    async def test_failures_are_model_errors_with_kind_and_cause(self, kind: ErrorKind, way: Way) -> None:
        """A failure of the vendor is a ModelError with its kind, and with the original error as its cause.

        It is raised at once: only the rules of a run retry, so that telemetry has every attempt.
        """
        wait = 7.0 if kind == "rate_limited" else None
        async with self._model(Fails(kind=kind, retry_after=wait)) as (model, vendor):
            error = await failure(partial(ask, model, question(), way))
            assert error.error_kind == kind, f"the vendor failed with {kind!r}, the error says {error.error_kind!r}"
            assert error.__cause__ is not None, "the ModelError has no cause; raise it from the vendor's exception"
            assert error.model, "the ModelError does not name the model"
            assert error.retry_after == wait, f"the vendor asks to wait {wait} s, the error says {error.retry_after}"
            calls = len(vendor.received)
            assert calls <= len(candidates(model)), (
                f"the vendor was called {calls} times; turn off the retries of its SDK"
            )

    async def test_a_stream_that_breaks_is_an_error(self) -> None:
        """A stream that breaks off is an error, never a truncated answer."""
        async with self._model(Fails(kind="unavailable", text="Half an ans")) as (model, _):
            items: list[StreamItem] = []

            async def read() -> None:
                async for item in open_stream(model, question()):
                    items.append(item)  # noqa: PERF401  (the items before the error are checked)

            kind = (await failure(read)).error_kind
            answers = [item for item in items if isinstance(item, ModelResponse)]
            assert answers == [], "a stream that broke off yielded a response"
            kinds = ("invalid_response", "unavailable")
            assert kind in kinds, (
                f"the stream broke off, and the kind of the error is {kind!r}, which is not of {kinds}"
            )

    # --- cancellation -------------------------------------------------------------------------------------------------

    @both_ways
    async def test_cancellation_passes_through(self, way: Way) -> None:
        """A cancelled call ends at once with the cancellation itself, and closes the vendor's connection."""
        async with self._model(Hangs(text="Half an answer")) as (model, vendor):
            started = anyio.Event()
            outcomes: list[str] = []

            async def call() -> None:
                try:
                    if way == "whole":
                        await model.generate(question())
                    else:
                        async for _ in open_stream(model, question()):
                            started.set()
                    outcomes.append("it returned")
                except Exception as error:  # noqa: BLE001  (asserted below)
                    outcomes.append(f"it raised {error!r}")
                except anyio.get_cancelled_exc_class():
                    outcomes.append("cancelled")
                    raise

            async with anyio.create_task_group() as group:
                group.start_soon(call)
                await wait_until(
                    lambda: bool(vendor.received or outcomes) if way == "whole" else started.is_set() or bool(outcomes)
                )
                group.cancel_scope.cancel()
            assert outcomes == ["cancelled"], f"a cancelled call must raise the cancellation itself, but {outcomes[0]}"
            await self._assert_disconnected(vendor, "a call was cancelled")

    async def test_a_stream_left_early_is_closed(self) -> None:
        """`aclose()` on an incomplete stream closes the vendor's connection."""
        async with self._model(Hangs(text="Half an answer")) as (model, vendor):
            items = open_stream(model, question())
            await anext(items)
            await close(items)
            await self._assert_disconnected(vendor, "a stream was closed")

    # --- concurrency --------------------------------------------------------------------------------------------------

    async def test_calls_at_once_do_not_mix(self) -> None:
        """Each of ten concurrent calls gets its own answer."""

        def echo(sent: str) -> Deed:
            number = next(number for number in range(10) if f"NUMBER{number}" in sent)
            return self._answers("text", message=Message("assistant", f"This is the answer to NUMBER{number}."))

        async with self._model(echo) as (model, _):
            texts: dict[int, str] = {}

            async def call(number: int) -> None:
                request = question(messages=(Message("user", f"NUMBER{number}"),))
                texts[number] = (await answer(model, request, "whole" if number % 2 else "streamed")).message.text

            async with anyio.create_task_group() as group:
                for number in range(10):
                    group.start_soon(call, number)
            expected = {number: f"This is the answer to NUMBER{number}." for number in range(10)}
            assert texts == expected, "concurrent calls got each other's answers"

    @both_ways
    async def test_it_works_in_several_event_loops(
        self, way: Way, anyio_backend_name: str, anyio_backend_options: dict[str, Any]
    ) -> None:
        """One model works in several event loops, also after one was closed; `aclose` only affects the current loop."""
        answers = self._answers("text")
        loop: dict[str, Any] = {"backend": anyio_backend_name, "backend_options": anyio_backend_options}

        async def once() -> ModelResponse:
            try:
                return await answer(model, question(), way, "in another event loop")
            finally:
                await close(model)

        async with self._model(answers) as (model, _):
            assert_same(await answer(model, question(), way), answers.response)
            for _ in range(2):
                assert_same(await anyio.to_thread.run_sync(partial(anyio.run, once, **loop)), answers.response)
            assert_same(
                await answer(model, question(), way, "after it was closed in another event loop"), answers.response
            )
