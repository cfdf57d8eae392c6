"""The answer that ends a run: text, or a value of the agent's output type."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pellucid.errors import OutputError
from pellucid.events import OutputRejected
from pellucid.failures import describe
from pellucid.messages import Message
from pellucid.models import ModelResponse
from pellucid.run.state import Run
from pellucid.run.structured_output import Mismatch, answer_text, repair_prompt
from pellucid.telemetry import Boundary

CUT_SHORT: Final = {
    "length": "it was cut off; raise `max_tokens` in the agent's settings",
    "content_filter": "the model refused to answer",
}
"""Finish reasons after which another attempt does not help, with the text for the error."""


class Answer(NamedTuple):
    """An accepted answer.

    Attributes:
        value: Its text, or its value if the agent has an output type.
    """

    value: Any


def accept(run: Run, b: Boundary, response: ModelResponse, *, can_repair: bool) -> Answer | None:
    """Accept the last message as the answer if it fits the agent's output type.

    Returns:
        The answer, or None if the problem was added to the conversation and the model must be called again.

    Raises:
        OutputError: the message does not fit the type and `can_repair` is false, or a validator of the type failed.
    """
    message, output = run.conversation.messages[-1], run.setup.output
    if output is None:
        return Answer(message.text)
    try:
        return Answer(output.parse(answer_text(message)))
    except Exception as error:  # noqa: BLE001  (other than a `Mismatch`: a bug in a validator, which no model can correct)
        mismatch = error if isinstance(error, Mismatch) else None
        problem = str(mismatch) if mismatch is not None else describe(error)
        is_final = mismatch is None or not can_repair or response.finish_reason in CUT_SHORT
        payload = {"problem": run.scope.text(problem) or "", "is_final": is_final}
        run.scope.emit(OutputRejected, b.span.get_span_context(), payload)
        if not is_final:
            run.conversation.messages.append(Message("user", repair_prompt(problem)))
            return None
        if mismatch is not None:
            reason, cause = CUT_SHORT.get(response.finish_reason, problem), mismatch.__cause__
            text = f"its answer is not a valid {output.name}: {reason}"
        else:
            text, cause = f"a validator of {output.name} failed on its answer: {problem}", error
        raise OutputError(run.conversation.answered_by, text, text=message.text) from cause
