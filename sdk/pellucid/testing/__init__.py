"""Test doubles of the SDK, and the contract of models as tests to inherit.

`ModelContract` is imported on first use, because it needs pytest; the doubles do not.
"""

from typing import TYPE_CHECKING

from pellucid.module_names import load_from, module_getattr
from pellucid.testing.hubs import FakeHub
from pellucid.testing.models import Answer, FunctionModel, Pieces, ScriptedModel, Step
from pellucid.testing.vendor import Answers, Deed, Fails, Hangs, ScriptedVendor

if TYPE_CHECKING:
    from pellucid.testing.contract import ModelContract
else:
    __getattr__ = module_getattr(__name__, lazy=load_from({"ModelContract": "pellucid.testing.contract"}))

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
