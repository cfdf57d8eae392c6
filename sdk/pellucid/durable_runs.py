"""An old name of `pellucid.durable`."""

from typing import TYPE_CHECKING

from pellucid.module_names import module_getattr

if TYPE_CHECKING:
    from pellucid.durable import (  # noqa: F401
        Callbacks,
        CallTokens,
        Completion,
        Conversation,
        Delivery,
        DurableRuns,
        LiveEvents,
        RunDelta,
        RunEvent,
        RunEventPage,
        RunState,
        StreamMode,
        WorkQueue,
        verify_callback,
    )

__all__: list[str] = []

_NAMES = (
    "CallTokens",
    "Callbacks",
    "Completion",
    "Conversation",
    "Delivery",
    "DurableRuns",
    "LiveEvents",
    "RunDelta",
    "RunEvent",
    "RunEventPage",
    "RunState",
    "StreamMode",
    "WorkQueue",
    "verify_callback",
)

if not TYPE_CHECKING:
    __getattr__ = module_getattr(__name__, deprecated={name: ("pellucid.durable", name) for name in _NAMES})
