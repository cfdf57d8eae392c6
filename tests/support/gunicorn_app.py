"""An application under gunicorn whose requests run an agent; the configuration file says where it is measured."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pellucid import Agent
from pellucid.testing import FunctionModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

agent = Agent("web", model=FunctionModel(lambda request: "done"))


def app(environ: Mapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Run the agent; answer with the id of this process."""
    agent.run_sync("go")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
