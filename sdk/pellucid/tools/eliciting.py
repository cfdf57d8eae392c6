"""Tools whose calls may ask a person for input."""

from __future__ import annotations

from functools import cached_property

from pellucid.tools.tool import CallKind, RenamedTool, Tool


class ElicitingTool(Tool):
    """Tool whose calls may ask a person for input before they end."""

    @cached_property
    def call_kind(self) -> CallKind:
        """Properties by which the links of a call are selected."""
        return CallKind(False, self.execution, self.serial, self.needs_approval is not False, elicits=True)


class RenamedElicitingTool(ElicitingTool, RenamedTool):
    """The same, for a tool whose name has characters that people do not see."""
