"""Options of queues, and errors of those that are wrong."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from pellucid.durable import DurableRuns, NATSQueue, StreamLimits, open_store
from pellucid.errors import ConfigError
from support.nats_server import Admin, nats_server
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pellucid.durable import RunStore
    from support.nats_server import NATSServer

SECRET = "p4ssw0rd"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("", {}),
        (f"amqp://ann:{SECRET}@host", {}),
        (f"nats://ann:{SECRET}@host:port", {}),
        (f"nats://ann:{SECRET}@", {}),
        (f"nats://ann:{SECRET}@host", {"prefix": "a.b"}),
        (f"nats://ann:{SECRET}@host", {"ack_wait": 0}),
        (f"nats://ann:{SECRET}@host", {"max_deliveries": 0}),
        (f"nats://ann:{SECRET}@host", {"buffer": 0}),
    ],
)
def test_invalid_options(url: str, options: dict[str, Any]) -> None:
    """Each is refused with its name, and without the password."""
    with pytest.raises(ConfigError, match="NATSQueue") as caught:
        NATSQueue(url, **options)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("limits", [{"max_age": 0.0}, {"max_bytes": 0}, {"replicas": 6}])
def test_invalid_limits(limits: dict[str, Any]) -> None:
    """They are refused."""
    with pytest.raises(ConfigError, match=next(iter(limits))):
        StreamLimits(**limits)


def test_without_nats_py(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "nats", None)
    with pytest.raises(ConfigError, match=r"pellucid\[nats\]"):
        NATSQueue("nats://host")


@pytest.mark.anyio
async def test_used_wrongly(store: RunStore, tmp_path: Path) -> None:
    """A queue is used by one store, while it is open."""
    closed = NATSQueue("nats://127.0.0.1:1")
    with pytest.raises(ConfigError, match="async with"):
        DurableRuns(store, [], queue=closed)
    async with open_store(f"sqlite:///{tmp_path}/other.db") as other, closed as queue:
        DurableRuns(store, [], queue=queue)
        DurableRuns(store, [], queue=queue)
        with pytest.raises(ConfigError, match="another store"):
            DurableRuns(other, [], queue=queue)


@pytest.mark.anyio
async def test_no_secret_in_logs(caplog: pytest.LogCaptureFixture) -> None:
    """A server that is away is a warning with its place, and without the password."""
    async with NATSQueue(f"nats://ann:{SECRET}@127.0.0.1:1,nats://{SECRET}@127.0.0.1:2"):
        with anyio.fail_after(PATIENCE):
            while "127.0.0.1:1, 127.0.0.1:2" not in caplog.text:  # noqa: ASYNC110  (a thread)
                await anyio.sleep(0.01)
    assert SECRET not in caplog.text


@pytest.mark.anyio
@pytest.mark.integration
async def test_too_little_storage(store: RunStore, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    """A server that cannot reserve the streams is a warning with both remedies; the second one helps."""
    small = StreamLimits(max_bytes=1024 * 1024)
    with anyio.fail_after(PATIENCE), nats_server(storage="100MB") as server:
        async with NATSQueue(server.url, prefix=prefix):
            while "storage" not in caplog.text:  # noqa: ASYNC110  (a thread)
                await anyio.sleep(0.01)
        async with NATSQueue(server.url, prefix=prefix, limits=small) as queue:
            await DurableRuns(store, [], queue=queue).submit("a", "go")
            assert await queue.receive(["a"], PATIENCE) is not None
    for remedy in ("3 streams of 268,435,456 bytes", "max_file_store", "StreamLimits(max_bytes="):
        assert remedy in caplog.text


@pytest.mark.anyio
@pytest.mark.integration
async def test_left_to_an_administrator(
    store: RunStore, make_queue: Callable[..., NATSQueue], nats: NATSServer, prefix: str
) -> None:
    """With is_managed=False nothing is created, and runs are found in the store; otherwise existing streams stay."""
    with anyio.fail_after(PATIENCE):
        async with Admin(nats.url) as admin:
            async with make_queue(is_managed=False) as queue:
                await DurableRuns(store, [], queue=queue).submit("a", "go")
                assert await queue.receive(["a"], 0.1) is None
            assert "error" in await admin.request(f"$JS.API.STREAM.INFO.{prefix}_work")
            name = f"{prefix}_work"
            config = {"name": name, "subjects": [f"{prefix}.work.*"], "retention": "workqueue", "max_msgs": 5}
            await admin.call("STREAM.CREATE", name, config)
            async with make_queue() as queue:
                await DurableRuns(store, [], queue=queue).submit("a", "go")
                assert await queue.receive(["a"], PATIENCE) is not None
            info = await admin.call("STREAM.INFO", name)
            assert info["config"]["max_msgs"] == 5
