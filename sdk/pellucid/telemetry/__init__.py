"""Spans, metrics, events and log lines of the phases; see README.md beside this file for their guarantees."""

from typing import TYPE_CHECKING, TypeAlias

from pellucid.module_names import load_within, module_dir, module_getattr
from pellucid.telemetry.boundary import Boundary, boundary, once
from pellucid.telemetry.capture import DEFAULT_REDACTORS, CapturePolicy, Redactor
from pellucid.telemetry.entered import Entered
from pellucid.telemetry.listeners import Listeners
from pellucid.telemetry.phases import AWAIT, BACKGROUND_DISCOVERY, COMPOSE, DISCOVERY, DISPATCH, INFERENCE, PHASES, RUN
from pellucid.telemetry.pipeline import Listener, Pipeline, TelemetryOptions, current_default
from pellucid.telemetry.scope import Scope, current_scope, enter_scope, leave_scope, shared_scope
from pellucid.telemetry.subscriptions import Subscribable

__all__ = [
    "AWAIT",
    "BACKGROUND_DISCOVERY",
    "COMPOSE",
    "DEFAULT_REDACTORS",
    "DISCOVERY",
    "DISPATCH",
    "INFERENCE",
    "PHASES",
    "RUN",
    "Boundary",
    "CapturePolicy",
    "CapturedValue",
    "Entered",
    "HubRequest",
    "Listener",
    "Listeners",
    "Pipeline",
    "Redactor",
    "Scope",
    "Subscribable",
    "TelemetryOptions",
    "boundary",
    "current_default",
    "current_scope",
    "enter_scope",
    "leave_scope",
    "once",
    "shared_scope",
]

if TYPE_CHECKING:
    from pellucid.telemetry.content import CapturedValue
    from pellucid.telemetry.hub_requests import HubRequest

    Telemetry: TypeAlias = TelemetryOptions
else:
    __getattr__ = module_getattr(
        __name__,
        lazy=load_within(__name__, {"hub_requests": ["HubRequest"], "content": ["CapturedValue"]}),
        deprecated={"Telemetry": (__name__, "TelemetryOptions")},
    )
    __dir__ = module_dir(__name__)
