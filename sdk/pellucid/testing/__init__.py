"""Helpers for tests: doubles of models and hubs, captured telemetry, and the contract of models as tests to inherit.

`ModelContract`, `OutsideService` and what captures telemetry are imported on first use, because they need pytest, an
HTTP server and `pellucid_exporters`.
"""

from typing import TYPE_CHECKING

from pellucid.module_names import load_from, module_getattr
from pellucid.testing.hubs import FakeHub
from pellucid.testing.model_calls import no_model_calls
from pellucid.testing.models import Answer, FunctionModel, Pieces, ScriptedModel, Step
from pellucid.testing.vendor import Answers, Deed, Fails, Hangs, ScriptedVendor

if TYPE_CHECKING:
    from pellucid.testing.contract import ModelContract
    from pellucid.testing.outside import Completion, Delivery, Job, OutsideService
    from pellucid_exporters.testing import Captured, CapturedSpan, Exemplar, Point, capture, check_telemetry
else:
    __getattr__ = module_getattr(
        __name__,
        lazy=load_from(
            {
                **dict.fromkeys(
                    ("Captured", "CapturedSpan", "Exemplar", "Point", "capture", "check_telemetry"),
                    "pellucid_exporters.testing",
                ),
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
    "Captured",
    "CapturedSpan",
    "Completion",
    "Deed",
    "Delivery",
    "Exemplar",
    "Fails",
    "FakeHub",
    "FunctionModel",
    "Hangs",
    "Job",
    "ModelContract",
    "OutsideService",
    "Pieces",
    "Point",
    "ScriptedModel",
    "ScriptedVendor",
    "Step",
    "capture",
    "check_telemetry",
    "no_model_calls",
]
