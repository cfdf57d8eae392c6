"""Helpers for tests: doubles of models and hubs, captured telemetry, and the contract of models as tests to inherit.

Names are imported at their first use, each with what it needs: pytest, an HTTP server or `pellucid_exporters`.
"""

from typing import TYPE_CHECKING, TypeAlias

from pellucid.module_names import load_from, load_within, module_dir, module_getattr
from pellucid.testing.model_calls import no_model_calls
from pellucid.testing.models import Answer, FunctionModel, Pieces, ScriptedModel, Step

if TYPE_CHECKING:
    from pellucid.testing.contract import ModelContract
    from pellucid.testing.hubs import FakeHub
    from pellucid.testing.outside import Job, JobCompletion, JobDelivery, OutsideService
    from pellucid.testing.vendor import Answers, Deed, Fails, Hangs, ScriptedVendor
    from pellucid_exporters.testing import Captured, CapturedSpan, Exemplar, Point, capture, check_telemetry

    Completion: TypeAlias = JobCompletion
    Delivery: TypeAlias = JobDelivery
else:
    __getattr__ = module_getattr(
        __name__,
        lazy=load_within(
            __name__,
            {
                "contract": ["ModelContract"],
                "hubs": ["FakeHub"],
                "outside": ["Job", "JobCompletion", "JobDelivery", "OutsideService"],
                "vendor": ["Answers", "Deed", "Fails", "Hangs", "ScriptedVendor"],
            },
        )
        | load_from(
            dict.fromkeys(
                ("Captured", "CapturedSpan", "Exemplar", "Point", "capture", "check_telemetry"),
                "pellucid_exporters.testing",
            )
        ),
        deprecated={"Completion": (__name__, "JobCompletion"), "Delivery": (__name__, "JobDelivery")},
    )
    __dir__ = module_dir(__name__)


__all__ = [
    "Answer",
    "Answers",
    "Captured",
    "CapturedSpan",
    "Deed",
    "Exemplar",
    "Fails",
    "FakeHub",
    "FunctionModel",
    "Hangs",
    "Job",
    "JobCompletion",
    "JobDelivery",
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
