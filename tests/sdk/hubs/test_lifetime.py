"""For how long a list of a hub is good, and what ends that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from pellucid import ConfigError, DiscoveryContext, DiscoveryProvider, Tool
from pellucid.testing import FakeHub
from support.clock import Clock
from support.discovery import CTX, of
from support.hubs import PromisingHub, named, names

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]


async def test_time_to_live_counts_from_completion() -> None:
    """A fetch that takes longer than the time to live is cached afterwards all the same."""
    clock = Clock()

    class Slow(FakeHub):
        async def fetch_catalog(self, ctx: DiscoveryContext) -> Sequence[Tool]:
            clock.now += 100
            return await super().fetch_catalog(ctx)

    hub = Slow(named("a"))
    provider = DiscoveryProvider(hub, id="hub", ttl=10, clock=clock)
    with anyio.fail_after(60):
        await provider.list_tools(CTX)
        clock.now += 8.9
        await provider.list_tools(CTX)
        assert len(hub.calls) == 1
        clock.now += 1.2
        await provider.list_tools(CTX)
    assert len(hub.calls) == 2


@pytest.mark.parametrize(("lifetime", "fetches"), [(100.0, 1), (99.0, 2), (0.0, 2), (float("inf"), 1), (None, 2)])
async def test_a_hub_s_own_lifetime_goes_before_ttl(lifetime: float | None, fetches: int) -> None:
    """It is kept to the second, without jitter; `ttl` is for hubs that do not say."""
    clock, hub = Clock(), PromisingHub(lifetime)
    provider = DiscoveryProvider(hub, id="hub", ttl=10, clock=clock)
    with anyio.fail_after(60):
        await provider.list_tools(DiscoveryContext())
        clock.now += 99.5
        await provider.list_tools(DiscoveryContext())
    assert hub.fetches == fetches


async def test_invalidate_forgets_and_ignores_what_is_under_way() -> None:
    """A fetch that began before `invalidate` is not used for callers after it."""
    hub = FakeHub(lambda number: named(f"v{number}"), latency=0.02)
    provider = DiscoveryProvider(hub, id="hub")
    got: list[list[str]] = []

    async def early() -> None:
        got.append(names(await provider.list_tools(CTX)))

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(early)
            while not hub.calls:
                await anyio.lowlevel.checkpoint()
            provider.invalidate()
            assert names(await provider.list_tools(CTX)) == ["v2"]
        assert got == [["v1"]]
        assert names(await provider.list_tools(CTX)) == ["v2"]


async def test_entries_are_bounded() -> None:
    """The least recently used list goes first."""
    hub = FakeHub(named("a"))
    provider = DiscoveryProvider(hub, id="hub", max_entries=2)
    with anyio.fail_after(60):
        for tenant in ("a", "b", "a", "c", "a", "b"):
            await provider.list_tools(of(tenant))
    assert [call.identity.tenant for call in hub.calls if call.identity] == ["a", "b", "c", "b"]


@pytest.mark.parametrize(
    "options",
    [
        {"id": ""},
        {"ttl": -1},
        {"timeout": -1},
        {"stale_if_error": -1},
        {"stale_while_revalidate": -1},
        {"max_entries": 0},
        {"hub": 5},
        {"id": 5},
        {"ttl": "x"},
        {"timeout": "x"},
        {"patience": "x"},
        {"max_entries": "x"},
        {"objective": "x"},
        {"objective": 0},
        {"slo": "x"},
        {"on_invalid": "skip"},
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """The error names the option and its value."""
    [(name, value)] = options.items()
    with pytest.raises(ConfigError, match=name) as refusal:
        DiscoveryProvider(**{"hub": FakeHub(), "id": "hub", **options})
    assert f"{name}={value!r}" in str(refusal.value)


def test_a_provider_is_no_hub() -> None:
    """A tool provider that is given as a hub is refused with the place where it belongs."""
    provider = DiscoveryProvider(FakeHub(), id="hub")
    with pytest.raises(ConfigError, match=r"not a hub but a tool provider; give it as Agent\(providers=\[...\]\)"):
        DiscoveryProvider(provider, id="other")  # type: ignore[arg-type]  # on purpose
