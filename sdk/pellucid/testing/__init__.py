"""Test doubles of the SDK, and the contract of models as tests to inherit.

`ModelContract` and `OutsideService` are imported on first use, because they need pytest and an HTTP server.
"""

from typing import TYPE_CHECKING

from pellucid.module_names import load_from, module_getattr
from pellucid.testing.hubs import FakeHub
from pellucid.testing.models import Answer, FunctionModel, Pieces, ScriptedModel, Step
from pellucid.testing.vendor import Answers, Deed, Fails, Hangs, ScriptedVendor

if TYPE_CHECKING:
    from pellucid.testing.contract import ModelContract
    from pellucid.testing.outside import Completion, Delivery, Job, OutsideService
else:
    __getattr__ = module_getattr(
        __name__,
        lazy=load_from(
            {
                "Completion": "pellucid.testing.outside",
                "Delivery": "pellucid.testing.outside",
                "Job": "pellucid.testing.outside",
                "ModelContract": "pellucid.testing.contract",
                "OutsideService": "pellucid.testing.outside",
            }
        ),
    )

__all__ = [
    "Answer",
    "Answers",
    "Completion",
    "Deed",
    "Delivery",
    "Fails",
    "FakeHub",
    "FunctionModel",
    "Hangs",
    "Job",
    "ModelContract",
    "OutsideService",
    "Pieces",
    "ScriptedModel",
    "ScriptedVendor",
    "Step",
]
