"""Helpers for tests: doubles of models and hubs, and the contract of models as tests to inherit.

Names are imported at their first use, each with what it needs: pytest or an HTTP server.
"""

from typing import TYPE_CHECKING, TypeAlias

from pellucid.module_names import load_within, module_dir, module_getattr
from pellucid.testing.model_calls import no_model_calls
from pellucid.testing.models import Answer, FunctionModel, Pieces, ScriptedModel, Step

if TYPE_CHECKING:
    from pellucid.testing.contract import ModelContract
    from pellucid.testing.hubs import FakeHub
    from pellucid.testing.outside import Job, JobCompletion, JobDelivery, OutsideService
    from pellucid.testing.vendor import Answers, Deed, Fails, Hangs, ScriptedVendor

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
        ),
        deprecated={"Completion": (__name__, "JobCompletion"), "Delivery": (__name__, "JobDelivery")}
        | {
            name: ("pellucid_exporters.testing", name)
            for name in ("Captured", "CapturedSpan", "Exemplar", "Point", "capture", "check_telemetry")
        },
    )
    __dir__ = module_dir(__name__)


__all__ = [
    "Answer",
    "Answers",
    "Deed",
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
    "ScriptedModel",
    "ScriptedVendor",
    "Step",
    "no_model_calls",
]
