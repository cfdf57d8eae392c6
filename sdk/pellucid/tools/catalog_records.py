"""Whole catalogues for recordings: everything about tools that a run depends on, except their functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, Final

from pellucid.telemetry.capture import CapturePolicy, Redactor, mask_secret_keys
from pellucid.telemetry.sanitize import Cleaner, dumps, size_of
from pellucid.tools.provider_tool import ProviderTool
from pellucid.tools.tool import AgentTool, Builtin, MetaTool, Tool
from pellucid.types import JSONValue

MAX_CATALOG: Final = 8 * 1024 * 1024
"""Maximum bytes of a recorded catalogue."""

_OPTIONS: Final = (
    "lazy", "serial", "idempotent", "timeout", "execution", "pending", "expires_in", "heartbeat", "tags",
    "on_invalid_output",
)  # fmt: skip
_KEYS: Final = {"expires_in": "deadline"}
"""Names in recordings of options that have another one by now."""

_DEFAULTS: Final = {field.name: field.default for field in fields(Tool)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogListing:
    """Catalogue that a run has listed, for the `catalog_sinks` of a pipeline.

    Attributes:
        provider_id: Id of the provider.
        digest: Value of `pellucid.catalog.digest`.
        tools: The tools, in the order of the provider.
        policy: Capture policy of the run, which records content.
    """

    provider_id: str
    digest: str
    tools: Sequence[Tool]
    policy: CapturePolicy


def catalog_json(listing: CatalogListing) -> str | None:
    """Return a catalogue as JSON with secrets masked, or None if it is larger than `MAX_CATALOG`.

    The object has `provider_id` and `tools`, each with `name`, `description`, `parameters`, `output_schema` if it has
    one and, unless it is the default, the options of `Tool`; `needs_approval` is `"function"` if that decides, `source`
    has `kind` and `place`, `annotations` are as MCP has them, with a hash in place of long addresses of icons. Tools of
    a vendor have `vendor`, `type` and `options`, built-in ones `is_meta`, agents `is_agent`. `omitted` is the number of
    characters and items that bounds have removed, if there are any.
    """
    redactors = tuple(listing.policy.redactors) if listing.policy.mode != "full" else ()
    # Keys of definitions are schema words, as in `Capturer.definitions`.
    formats = tuple(redactor for redactor in redactors if redactor is not mask_secret_keys)
    texts: list[str] = []
    size = omitted = 0
    for tool in listing.tools:
        definition = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        if tool.output_schema is not None:
            definition["output_schema"] = tool.output_schema
        definition, definition_omitted = _clean({**definition, **_traits(tool)}, formats)
        options, options_omitted = _clean(_options(tool), redactors)
        texts.append(dumps({**definition, **options}))
        omitted += definition_omitted + options_omitted
        size += size_of(texts[-1]) + 1
        if size > MAX_CATALOG:
            return None
    rest = f',"omitted":{omitted}' if omitted else ""
    return f'{{"provider_id":{dumps(listing.provider_id)},"tools":[{",".join(texts)}]{rest}}}'


def version_of(listing: CatalogListing) -> str:
    """Return a hash of everything that `catalog_json` encodes, in less time: definitions are already hashed."""
    content = dumps([listing.provider_id, listing.digest, [(_traits(tool), _options(tool)) for tool in listing.tools]])
    return blake2b(content.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _traits(tool: Tool) -> dict[str, JSONValue]:
    """Return the options of a tool that are plain values."""
    traits: dict[str, JSONValue] = {
        _KEYS.get(name, name): value for name in _OPTIONS if (value := getattr(tool, name)) != _DEFAULTS[name]
    }
    if tool.mode != "inline":
        traits["mode"] = tool.mode
    if tool.needs_approval:
        traits["needs_approval"] = "function" if callable(tool.needs_approval) else True
    if tool.annotations is not None:
        traits["annotations"] = tool.annotations.brief
    if not isinstance(tool.source, Builtin):
        traits["source"] = {"kind": tool.source.kind, "place": tool.source.place}
    if isinstance(tool, ProviderTool):
        traits["vendor"], traits["type"] = tool.vendor, tool.type
    if isinstance(tool, MetaTool):
        traits["is_meta"] = True
    if isinstance(tool, AgentTool):
        traits["is_agent"] = True
    return traits


def _options(tool: Tool) -> dict[str, JSONValue]:
    """Return the options with keys of the application's, whose names may say that they are secrets."""
    options: dict[str, Any] = {"attributes": tool.attributes}
    if isinstance(tool, ProviderTool):
        options["options"] = tool.options
    return {name: value for name, value in options.items() if value}


def _clean(value: dict[str, JSONValue], redactors: Sequence[Redactor]) -> tuple[dict[str, Any], int]:
    """Return a value redacted, and the number of characters and items omitted."""
    if not value:
        return {}, 0
    cleaner = Cleaner(redactors, MAX_CATALOG)
    cleaned = cleaner.clean(value)
    assert isinstance(cleaned, dict)  # as `value`
    return cleaned, cleaner.removed
