"""Checks of events of denied tools, by `check_telemetry`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from fidelity.scripts import make_tool, quick
from pellucid import Agent, ToolCall
from pellucid.testing import ScriptedModel
from pellucid_exporters.testing import Captured, capture, check_telemetry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pellucid import PermissionRequest


@pytest.fixture
def told() -> Iterator[Captured]:
    """Telemetry of a run in which a tool is denied at each stage; it is right until a test changes it."""

    def policy(request: PermissionRequest) -> str:
        return "deny" if request.stage == request.tool_name else "allow"

    async def go() -> None:
        tools = [make_tool(name, quick) for name in ("offer", "activation", "dispatch")]
        steps: list[Any] = [
            ToolCall("tool_search", {"names": ["activation", "dispatch"]}),
            ToolCall("dispatch", {"n": 1}),
            "done",
        ]
        await Agent("a", model=ScriptedModel(*steps), tools=tools, policy=policy, registry_mode="lazy").run("go")

    with capture() as telemetry:
        anyio.run(go)
        check_telemetry(telemetry)
        telemetry.is_checked = False
        yield telemetry


@pytest.mark.parametrize(
    ("stage", "changes", "complaint"),
    [
        ("offer", {"stage": "dispatch"}, "has an event of a denial at stage 'dispatch'"),
        ("activation", {"stage": "offer"}, "has an event of a denial at stage 'offer'"),
        ("activation", {"permission": "halt"}, "='allow', but its event says 'halt'"),
        ("dispatch", {"permission": "halt"}, "='deny', but its event says 'halt'"),
        ("dispatch", {"stage": "refusal"}, "has an event of a denial at stage 'refusal'"),
    ],
)
def test_a_denial_that_lies_is_found(told: Captured, stage: str, changes: dict[str, Any], complaint: str) -> None:
    """`check_telemetry` finds an event of a denial with a wrong stage, or a permission that its span contradicts."""
    [index] = [number for number, event in enumerate(told.events) if getattr(event, "stage", None) == stage]
    told.events[index] = replace(told.events[index], **changes)
    with pytest.raises(AssertionError, match=complaint):
        check_telemetry(told)
