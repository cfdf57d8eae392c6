"""Partial output of a run: values of the output type while the answer arrives. Loaded at the first use."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final, cast

from pellucid.events import Event, InferenceDelta, InferenceStarted
from pellucid.run.outcomes import RunResult
from pellucid.run.structured_output import Output
from pellucid.types import OutputT_co

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_FENCE: Final = "```"
_NOTHING: Final = object()
"""Stands for an answer that is no value yet."""


async def partial_outputs(
    events: AsyncIterable[Event], result: Callable[[], RunResult[OutputT_co]], output: Output[OutputT_co] | None
) -> AsyncIterator[OutputT_co]:
    """Yield the values of an answer that arrives, each time that it has another one, and last the run's output.

    Args:
        events: The events of the run.
        result: Returns its result, once the events have ended.
        output: Its output type; None for texts.
    """
    read = str if output is None else _Reader(output).read
    last: Any = _NOTHING
    text = ""
    async for event in events:
        if isinstance(event, InferenceStarted):
            text = ""
        elif isinstance(event, InferenceDelta) and event.type == "text":
            text += event.content
            if (value := read(text)) is not _NOTHING and value != last:
                last = value
                yield cast("OutputT_co", value)
    whole = result()
    if whole.checkpoint is None and whole.output is not None and whole.output != last:
        yield whole.output


class _Reader:
    """Reads a value from the beginning of an answer, as `Output.parse` reads it from the whole."""

    def __init__(self, output: Output[Any]) -> None:
        self._bare: TypeAdapter[Any] = output.adapter
        self._in_object: TypeAdapter[Any] | None = None
        if output.wrapped is not None:
            from pydantic import TypeAdapter
            from typing_extensions import TypedDict

            # Unlike a model, a typed dictionary passes on to its last value that it is partial.
            make: Any = TypedDict  # type checkers want its members in the source
            members = {"result": output.wrapped.model_fields["result"].annotation}
            self._in_object = TypeAdapter(make("Output", members, total=False))

    def read(self, text: str) -> object:
        """Return the value, or `_NOTHING`."""
        document = _inside(text)
        try:
            if self._in_object is None or not document.startswith("{"):
                return self._bare.validate_json(document, experimental_allow_partial="trailing-strings")
            members = self._in_object.validate_json(document, experimental_allow_partial="trailing-strings")
        except Exception:  # noqa: BLE001  (validators see values that are not complete; the whole answer is validated again)
            return _NOTHING
        return members.get("result", _NOTHING)


def _inside(text: str) -> str:
    """Return the text without the Markdown fence around it, of which the end may not have arrived."""
    stripped = text.lstrip()
    if not stripped.startswith(_FENCE):
        return stripped
    return stripped.partition("\n")[2].partition(f"\n{_FENCE}")[0].lstrip()
