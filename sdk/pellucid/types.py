"""Types of JSON, and the type parameters of agents, tools and contexts."""

from __future__ import annotations

from typing import Any, TypeAlias

from typing_extensions import TypeVar

JSONValue: TypeAlias = Any
"""`None`, a boolean, a number, a string, or a list or object of these (RFC 8259)."""

JSONObject: TypeAlias = dict[str, Any]
"""A JSON object, such as a JSON Schema."""

DepsT = TypeVar("DepsT", default=object)
"""Type of the `deps` of a run."""

DepsT_co = TypeVar("DepsT_co", default=object, covariant=True)
"""Type of `ToolContext.deps`. A function of a `ToolContext` without a type takes the context of every run."""

DepsT_contra = TypeVar("DepsT_contra", default=object, contravariant=True)
"""Type of the `deps` that a tool or the runs of an agent need: `object` if they need none, so that all `deps` fit."""

OutputT_co = TypeVar("OutputT_co", default=str, covariant=True)
"""Type of an agent's answers: text, unless `Agent(output=)` is given."""
