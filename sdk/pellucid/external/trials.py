"""Tools that try out asynchronous calls: one in the background of the run, one in a service outside."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import anyio
from pydantic import Field, SecretStr

from pellucid.context import ToolContext
from pellucid.errors import ConfigError, ToolError
from pellucid.external.options import ToolOptions
from pellucid.tools import Tool, tool


class TrialOptions(ToolOptions):
    """Options of `test_async`.

    Attributes:
        delay: Seconds that a call takes.
    """

    delay: float = Field(default=1.0, ge=0)


class TrialDispatchOptions(ToolOptions):
    """Options of `test_external_async`.

    Attributes:
        service_url: Address of the service that does the work, such as `pellucid.testing.OutsideService`.
        completion_base_url: Address before the completion path, where no server of Pellucid knows its own.
        completion_bearer_token: Token for completions, where no server of Pellucid gives each call one of its own.
        delay: Seconds that the service takes.
        deadline: Seconds until the call expires; None if it never does.
        timeout: Seconds until the service must have accepted the work.
    """

    service_url: str
    completion_base_url: str | None = None
    completion_bearer_token: SecretStr | None = None
    delay: float = Field(default=1.0, ge=0)
    deadline: float | None = Field(default=None, gt=0)
    timeout: float = Field(default=10.0, gt=0)


def trial(options: TrialOptions) -> Tool:
    """Return a tool that waits, and then returns its input."""

    @tool(idempotent=True)
    async def test_async(message: str) -> dict[str, Any]:
        """Return a message after a while.

        Args:
            message: Any text.
        """
        await anyio.sleep(options.delay)
        return {"message": message, "delay": options.delay}

    return test_async


def trial_dispatch(options: TrialDispatchOptions) -> Tool:
    """Return a tool whose work is done by a service outside.

    Raises:
        ConfigError: the address of the service is not HTTP.
    """
    if not options.service_url.startswith(("http://", "https://")):
        raise ConfigError(f"serviceUrl={options.service_url!r} is not an address with http:// or https://")

    @tool(execution="external-dispatch", deadline=options.deadline, timeout=options.timeout)
    def test_external_async(message: str, ctx: ToolContext) -> None:
        """Return a message, by way of a service outside.

        Args:
            message: Any text.
            ctx: Context of the call.
        """
        external = ctx.external
        assert external is not None  # set for tools with this execution
        base, token = options.completion_base_url, options.completion_bearer_token
        job = {
            "resultId": external.result_id,
            "input": {"message": message},
            "delay": options.delay,
            "completeUrl": external.complete_url or (base.rstrip("/") + external.complete_path if base else None),
            "token": external.token or (token.get_secret_value() if token is not None else None),
            "headers": dict(external.headers),
        }
        body = json.dumps(job).encode()
        url = f"{options.service_url.rstrip('/')}/jobs"
        headers = {"Content-Type": "application/json", "Idempotency-Key": external.result_id}
        request = Request(url, body, headers)  # noqa: S310  (checked to be HTTP)
        try:
            with urlopen(request, timeout=options.timeout):  # noqa: S310  (checked to be HTTP)
                pass
        except (URLError, OSError) as error:
            raise ToolError(f"The service did not accept the work: {error}", error_type="unavailable") from error

    return test_external_async
