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
    except Mismatch as mismatch:
        problem = str(mismatch)
        can_repair = can_repair and response.finish_reason not in CUT_SHORT
        _reject(run, b, problem, is_final=not can_repair)
        if not can_repair:
            reason = CUT_SHORT.get(response.finish_reason, problem)
            raise _error(run, f"its answer is not a valid {output.name}: {reason}", message) from mismatch.__cause__
        run.conversation.messages.append(Message("user", repair_prompt(problem)))
        return None
    except Exception as error:  # a bug in an application's validator, which the model cannot correct
        problem = describe(error)
        _reject(run, b, problem, is_final=True)
        raise _error(run, f"a validator of {output.name} failed on its answer: {problem}", message) from error


def _error(run: Run, problem: str, message: Message) -> OutputError:
    return OutputError(run.conversation.answered_by, problem, text=message.text)


def _reject(run: Run, b: Boundary, problem: str, *, is_final: bool) -> None:
    payload = {"problem": run.scope.text(problem) or "", "is_final": is_final}
    run.scope.emit(OutputRejected, b.span.get_span_context(), payload)
