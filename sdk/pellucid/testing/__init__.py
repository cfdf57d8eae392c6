"""Doubles that ship with the SDK, and the contract that every model keeps.

`ModelContract` is imported when it is asked for: it needs pytest, the doubles do not.
"""

from typing import TYPE_CHECKING, Any

from pellucid.testing.hubs import FakeHub
from pellucid.testing.models import Answer, FunctionModel, Pieces, ScriptedModel, Step
from pellucid.testing.vendor import Answers, Deed, Fails, Hangs, ScriptedVendor

if TYPE_CHECKING:
    from pellucid.testing.contract import ModelContract

__all__ = [
    "Answer",
    "Answers",
    "Deed",
    "Fails",
    "FakeHub",
    "FunctionModel",
    "Hangs",
    "ModelContract",
    "Pieces",
    "ScriptedModel",
    "ScriptedVendor",
    "Step",
]


def __getattr__(name: str) -> Any:
    if name == "ModelContract":
        from pellucid.testing.contract import ModelContract

        return ModelContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
