"""The pages of `pellucid view` over a store, served in this process."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from pellucid_exporters import StoreReader
from pellucid_exporters.viewer import create_viewer_app
from support.local_store import eventually
from support.processes import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def serving(path: Path) -> Iterator[str]:
    """Serve the pages of a store, and give their address."""
    with serving_app(create_viewer_app(StoreReader(path), label=path.name)) as address:
        yield address


@contextmanager
def serving_app(app: Any) -> Iterator[str]:
    """Serve an ASGI application, and give its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
