"""Keys of cached lists: each tenant has its own list, unless `key` says otherwise."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pellucid import DiscoveryContext, DiscoveryError, DiscoveryProvider, Identity
from pellucid.testing import FakeHub
from pellucid_exporters.testing import Captured
from support.discovery import ask, of
from support.hubs import named, names

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_tenants_do_not_share() -> None:
    """Each tenant gets its own list from its own fetch."""
    hub = FakeHub(lambda number: named(f"t{number}"))
    provider = DiscoveryProvider(hub, id="hub")
    with anyio.fail_after(60):
        first, second = await provider.list_tools(of("acme")), await provider.list_tools(of("globex"))
        assert names(await provider.list_tools(of("acme"))) == names(first)
    assert names(first) != names(second)
    assert [call.identity.tenant for call in hub.calls if call.identity] == ["acme", "globex"]


async def test_tenants_that_share_a_key_share_a_list() -> None:
    """Contexts with the same `key` share a list, and `invalidate` takes such a key."""
    hub = FakeHub(lambda number: named(f"v{number}"))
    provider = DiscoveryProvider(hub, id="hub", key=lambda ctx: ctx.identity and ctx.identity.principal)

    async def of(tenant: str, principal: str) -> list[str]:
        return names(await provider.list_tools(DiscoveryContext(identity=Identity(tenant=tenant, principal=principal))))

    with anyio.fail_after(60):
        assert [await of("acme", "ann"), await of("globex", "ann"), await of("acme", "bob")] == [["v1"], ["v1"], ["v2"]]
        provider.invalidate("ann")
        assert [await of("acme", "ann"), await of("acme", "bob")] == [["v3"], ["v2"]]


@pytest.mark.parametrize("key", [lambda ctx: [], lambda ctx: 1 / 0], ids=["unhashable", "raises"])
async def test_a_key_that_is_none_fails(telemetry: Captured, key: Any) -> None:
    """A discovery fails if its key cannot be computed."""
    hub = FakeHub(named("a"))
    with pytest.raises(DiscoveryError, match="'hub' failed"):
        await ask(telemetry, DiscoveryProvider(hub, id="hub", key=key))
    assert hub.calls == []
