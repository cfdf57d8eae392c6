"""The tools that a model call offered: as recorded, or from the catalogues of their providers where they were cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pellucid.messages import ToolDefinition
from pellucid_exporters.stored.reasons import Listed, Reasons


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTools:
    """Tools that a model call offered.

    Attributes:
        definitions: Their definitions, in order; `None` if none are known.
        number: How many were offered; `None` if that is unknown.
        recorded: Number of definitions that the run has recorded; bounds of the capture policy cut the others.
    """

    definitions: Sequence[Any] | None = None
    number: int | None = None
    recorded: int = 0

    @property
    def missing(self) -> int:
        """Number of tools whose definitions are unknown."""
        return max(0, (self.number or 0) - len(self.definitions)) if self.definitions is not None else 0

    @property
    def cut(self) -> str:
        """Sentence for people where definitions were cut; else empty."""
        if self.definitions is None or self.number is None or self.recorded >= self.number:
            return ""
        rest = "; the others are from the catalogues of their providers" if not self.missing else ""
        return f"definitions cut: {self.number:,} offered, {self.recorded:,} recorded here{rest}"


def rebuilt(
    listed: Sequence[tuple[str, Mapping[str, Any]]],
    reasons: Reasons,
    iteration: int,
    number: int,
    recorded: Sequence[Any],
) -> list[Any] | None:
    """Return the definitions of all tools that a call offered, from the catalogues of its iteration.

    The definitions that were recorded are the first ones, so they show whether these are the same tools.

    Args:
        listed: Tools that providers listed in the iteration, with the provider, in order.
        reasons: Why tools were not offered.
        iteration: Number of the iteration.
        number: How many tools were offered.
        recorded: Definitions that the run has recorded.
    """
    for denied in (reasons.denied_in.get(iteration, set()), reasons.denied.keys()):
        definitions: dict[Any, Any] = {}
        for definition in _definitions(listed, reasons, {*denied, *reasons.pinned}):
            definitions.setdefault(definition["name"], definition)
        if len(definitions) == number and list(definitions)[: len(recorded)] == [_name(item) for item in recorded]:
            return [*recorded, *list(definitions.values())[len(recorded) :]]
    return None


def _definitions(
    listed: Sequence[tuple[str, Mapping[str, Any]]], reasons: Reasons, withheld: set[Listed]
) -> Iterator[Mapping[str, Any]]:
    for provider_id, item in listed:
        key: Listed = (str(item.get("name")), provider_id)
        name = reasons.shadowed[key] if key in reasons.shadowed else key[0]
        if name is not None and key not in withheld:
            description, parameters = str(item.get("description") or ""), item.get("parameters") or {}
            yield ToolDefinition(
                name=name,
                description=description,
                parameters=parameters,
                output_schema=item.get("output_schema"),
            ).to_dict()


def _name(item: Any) -> Any:
    return item.get("name") if isinstance(item, Mapping) else None
