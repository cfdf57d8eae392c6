"""From the arguments of `Agent.resume` to the request that a run starts from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pellucid.approvals.checkpoint import Checkpoint
from pellucid.approvals.decisions import Decision
from pellucid.approvals.external import ExternalResult
from pellucid.errors import CheckpointError
from pellucid.run.start import ResumeRequest
from pellucid.text import excerpt
from pellucid.types import JSONObject

_T = TypeVar("_T")


def resume_request(checkpoint: JSONObject, options: Mapping[str, Any]) -> ResumeRequest:
    """Return the request to resume from a checkpoint.

    Raises:
        CheckpointError: the checkpoint, the decisions or the results are not valid.
    """
    decisions = all_of(Decision, "decisions", options.get("decisions", ()))
    results = all_of(ExternalResult, "results", options.get("results", ()))
    return ResumeRequest(Checkpoint.from_dict(checkpoint), decisions, results, options.get("claims"))


def all_of(
    kind: type[_T], option: str, values: object, method: str = "Agent.resume()", owner: str = "result"
) -> tuple[_T, ...]:
    """Return the values of an option of a method, each for something that `owner` has.

    Raises:
        CheckpointError: they are no sequence of this type.
    """
    listed = tuple(values) if isinstance(values, Iterable) else (None,)
    if not all(isinstance(value, kind) for value in listed):
        raise CheckpointError(
            f"{option}={excerpt(repr(values))} of {method} is not a sequence of {kind.__name__} objects; "
            f"make one for each of the {owner}'s `{'approvals' if kind is Decision else 'external'}`"
        )
    return listed
