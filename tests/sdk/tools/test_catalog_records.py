"""Whole catalogues, as recordings have them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import (
    Agent,
    CapturePolicy,
    Hub,
    ProviderTool,
    Skill,
    TelemetryOptions,
    Tool,
    ToolRegistry,
    tool,
)
from pellucid.testing import ScriptedModel
from pellucid.tools import ToolAnnotations
from pellucid.tools.annotations import ToolIcon
from pellucid.tools.catalog_records import CatalogListing, catalog_json
from pellucid.tools.tool import digest_of
from pellucid_exporters.testing import capture
from support.runs import within

if TYPE_CHECKING:
    from pellucid.telemetry.capture import CaptureMode

KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"


@tool
async def add(a: int, password: str = "") -> int:
    """Add."""
    return a


def recorded(*tools: Tool, mode: CaptureMode = "redacted") -> list[dict[str, Any]]:
    """Return the records of tools."""
    text = catalog_json(CatalogListing(provider_id="git", digest="", tools=tools, policy=CapturePolicy(mode)))
    assert text is not None
    found: list[dict[str, Any]] = json.loads(text)["tools"]
    return found


def test_a_record_has_what_a_tool_says_of_itself() -> None:
    """With the names of MCP, and a hash in place of the long address of an icon."""
    icon = ToolIcon(src="data:image/png;base64," + "A" * 9_000)
    said = ToolAnnotations(title="Sum", read_only_hint=True, icons=(icon,))
    [found] = recorded(replace(add, annotations=said))
    assert found["annotations"] == said.brief
    assert {name: found["annotations"][name] for name in ("title", "readOnlyHint")} == {
        "title": "Sum",
        "readOnlyHint": True,
    }
    assert len(json.dumps(found["annotations"])) < 300
    assert ToolAnnotations.from_dict(found["annotations"]).brief == said.brief


def test_a_record_has_what_a_run_depends_on() -> None:
    """Definitions as they are, options that are not the default, and masked secrets."""
    whole = replace(
        add,
        timeout=2.5,
        idempotent=True,
        lazy="search",
        tags=("sum",),
        needs_approval=lambda arguments, ctx: True,
        execution="external-dispatch",
        pending="wait",
        expires_in=9.0,
        source=Hub("git"),
        mode="mcp",
        attributes={"place": "here", "api_key": "hidden"},
        description=f"Use {KEY}.",
    )
    plain, found = recorded(add, whole)
    assert plain == {"name": "add", "description": "Add.", "parameters": add.input_schema}
    assert found == {
        **plain,
        "description": "Use [redacted].",
        "timeout": 2.5,
        "idempotent": True,
        "lazy": "search",
        "tags": ["sum"],
        "needs_approval": "function",
        "execution": "external-dispatch",
        "pending": "wait",
        "deadline": 9.0,
        "source": {"kind": "hub", "place": "git"},
        "mode": "mcp",
        "attributes": {"place": "here", "api_key": "[redacted]"},
    }
    assert KEY in recorded(whole, mode="full")[0]["description"]


def test_a_record_gives_an_equal_definition() -> None:
    """Of a function's tool and of a vendor's: the digests of catalogues that are made of records are equal."""
    vendors = ProviderTool(vendor="openai", type="web_search", options={"search_context_size": "low"})
    own, other = recorded(add, vendors)
    again = Tool(name=own["name"], run=add.run, description=own["description"], input_schema=own["parameters"])
    assert again.digest == add.digest
    options = {name: other[name] for name in ("name", "vendor", "type", "options")}
    assert digest_of(ProviderTool(**options).definition) == vendors.digest


@pytest.mark.anyio
@pytest.mark.parametrize("mode", ["redacted", "metadata"])
async def test_sinks_receive_each_catalogue_of_a_run_that_records_content(mode: CaptureMode) -> None:
    """Each discovery of it, also of the skills; a sink that fails is no fault of the run."""
    listings: list[CatalogListing] = []

    def fail(_: CatalogListing) -> None:
        raise OSError

    with capture() as telemetry:
        options = TelemetryOptions(
            tracer_provider=telemetry.tracer_provider,
            capture=CapturePolicy(mode),
            catalog_sinks=[fail, listings.append],
        )
        skill = Skill("refunds", "How to.", "Do it.")
        model = ScriptedModel("hi")
        agent = Agent("a", model=model, providers=[ToolRegistry([add], id="desk")], skills=[skill], telemetry=options)
        assert (await within(agent.run("go"))).output == "hi"
    if mode == "metadata":
        assert listings == []
        return
    found = {listing.provider_id: json.loads(catalog_json(listing) or "")["tools"] for listing in listings}
    assert [tool["name"] for tool in found["desk"]] == ["add"]
    assert found["skills"][0]["is_meta"] is True
