"""Serve the pages on a loopback address until an interrupt or SIGTERM."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import uvicorn

from pellucid.errors import ConfigError
from pellucid_commands.serving.sockets import listen_at, reason_of, url_of
from pellucid_commands.view.stores import first_store, reader_of
from pellucid_exporters.local.options import DEFAULT_PATH
from pellucid_exporters.stored.nothing import NoTelemetry
from pellucid_exporters.viewer import create_viewer_app
from pellucid_exporters.viewer.runs.saved import SavedFilters

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from pathlib import Path
    from types import FrameType

    from starlette.applications import Starlette

    from pellucid_exporters.viewer.durable import DurablePages
    from pellucid_exporters.viewer.sessions import Actions

_ACTS: Final = "decide, retry and cancel durable runs, and score runs"

PORT: Final = 4380
"""Port unless another one is named or it is taken."""


def serve(
    paths: Sequence[Path],
    *,
    host: str,
    port: int | None,
    jaeger: str | None,
    grafana: str | None = None,
    browser: bool,
    durable: DurablePages | None = None,
    actions: Actions | None = None,
    cases: Path | None = None,
    images: bool = False,
) -> int:
    """Serve the pages of stores, print their address, and return the exit code.

    Raises:
        ConfigError: there is no store, or the port is taken.
    """
    # Who looks at durable runs may have no telemetry here; a path that was named must be there.
    [path, *others] = paths
    is_without = durable is not None and not others and str(path) == DEFAULT_PATH and not path.exists()
    labels = [] if is_without else list(map(str, paths))
    label = ", ".join([*labels, durable.label] if durable is not None else labels)
    reader = NoTelemetry() if is_without else reader_of(paths)
    with ExitStack() as stack:
        listener = stack.enter_context(closing(_listen(host, port)))
        feedback, filters = None, None
        if not is_without:
            filters = SavedFilters(first_store(path).with_suffix(".filters.json"))
        if actions is not None and not is_without:
            from pellucid_commands.view.actions import feedback_to

            feedback = stack.enter_context(feedback_to(first_store(path), reader, actions, cases))
        app = create_viewer_app(
            reader,
            label=label,
            jaeger=jaeger,
            grafana=grafana,
            durable=durable,
            feedback=feedback,
            images=images,
            filters=filters,
        )
        url = f"{url_of(host, listener)}/"
        first = f"{url}durable" if is_without else url
        print(f"{label} at {first}  (Ctrl-C ends)", flush=True)
        if actions is not None:
            token = f"sign-in?token={quote(actions.token, safe='')}"
            first, doing = (f"{url}{token}", "score runs") if durable is None else (f"{url}durable/{token}", _ACTS)
            print(f"to {doing}: {first}", flush=True)
        if browser:
            import webbrowser

            webbrowser.open(first)
        _Server(_config(app)).run([listener])
    return 0


class _Server(uvicorn.Server):
    """Server that ends at a signal instead of passing it on to the process once it has ended."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop serving."""
        self.should_exit = True


def _config(app: Starlette) -> uvicorn.Config:
    return uvicorn.Config(
        app, http="h11", ws="none", lifespan="on", log_level="warning", access_log=False, timeout_graceful_shutdown=1
    )


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket; without a port that was named, any free port if the default one is taken.

    Raises:
        ConfigError: the port is taken, or not allowed.
    """
    for number in (PORT, 0) if port is None else (port,):
        try:
            return listen_at(host, number)
        except OSError as error:
            problem = error
    raise ConfigError(f"--port {port}: {reason_of(problem)}; name another one, or 0 for any that is free") from problem
