"""Configuration of an agent, as its runs record it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Final

from pellucid import semconv
from pellucid.context import Limits
from pellucid.run.state import Setup
from pellucid.telemetry import Boundary, once
from pellucid.types import JSONValue

RECORDED_LIMITS: Final[Mapping[str, str]] = {"timeout": "deadline"}
"""Names of limits in recordings, where they differ."""


def record_configuration(b: Boundary, setup: Setup) -> None:
    """Record what a run's other records do not say of its agent; it is encoded once per agent and capture policy."""
    record = once(setup.captured, lambda capturer: capturer.schemas(_configuration(setup)))
    b.content(semconv.AGENT_CONFIGURATION, setup.parameters, record)


def _configuration(setup: Setup) -> JSONValue:
    """Return the configuration, with those limits that are not the default ones."""
    default = Limits()
    limits = {field.name: getattr(setup.limits, field.name) for field in fields(Limits)}
    configuration: dict[str, JSONValue] = {
        "registry_mode": "lazy" if setup.catalogs.is_lazy else "full",
        "collisions": setup.catalogs.collisions,
        "pin": setup.pin,
        "limits": {
            RECORDED_LIMITS.get(name, name): limit for name, limit in limits.items() if limit != getattr(default, name)
        },
        "skills": list(setup.skills),
        "providers": [{"id": lister.provider.id, "kind": lister.facts.kind} for lister in setup.listers],
    }
    if setup.output is not None:
        configuration["output_schema"] = dict(setup.output.schema.schema)
    return configuration
