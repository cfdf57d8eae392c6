"""Tools that return their input after a delay: one works by itself, one by way of a service outside."""

from __future__ import annotations

import json
import warnings
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import anyio
from pydantic import Field, SecretStr, model_validator

from pellucid.configured.options import ToolOptions
from pellucid.context import ExternalCall, ToolContext
from pellucid.errors import ToolError
from pellucid.tools import Tool, tool


class EchoOptions(ToolOptions):
    """Options of `test_async`.

    Attributes:
        delay: Seconds that a call takes.
    """

    delay: float = Field(default=1.0, ge=0)


class DispatchedEchoOptions(ToolOptions):
    """Options of `test_external_async`.

    Attributes:
        service_url: Address of the service that does the work, such as `pellucid.testing.OutsideService`.
        completion_base_url: Address before the completion path, where no server of Pellucid knows its own.
        completion_bearer_token: Token for completions, where no server of Pellucid gives each call one of its own.
        delay: Seconds that the service takes.
        expires_in: Seconds until the call expires; None if it never does.
        timeout: Seconds until the service must have accepted the work.
    """

    service_url: str = Field(pattern="^https?://")
    completion_base_url: str | None = Field(default=None, pattern="^https?://")
    completion_bearer_token: SecretStr | None = None
    delay: float = Field(default=1.0, ge=0)
    expires_in: float | None = Field(default=None, gt=0)
    timeout: float = Field(default=10.0, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _accept_deadline(cls, values: Any) -> Any:
        """Accept the old name of `expiresIn`."""
        if not isinstance(values, dict) or "deadline" not in values or "expiresIn" in values:
            return values
        warnings.warn("the option deadline is deprecated; use `expiresIn`", DeprecationWarning, stacklevel=2)
        return {"expiresIn" if name == "deadline" else name: value for name, value in values.items()}


def echo(options: EchoOptions) -> Tool:
    """Return a tool that waits, and then returns its input; as an external one, it waits for a completion."""

    @tool(idempotent=True)
    async def test_async(message: str, ctx: ToolContext) -> dict[str, Any] | None:
        """Return a message after a while.

        Args:
            message: Any text.
            ctx: Context of the call.
        """
        if ctx.external is not None:
            return None  # the person who tries it out completes the call
        await anyio.sleep(options.delay)
        return {"message": message, "delay": options.delay}

    return test_async


def dispatched_echo(options: DispatchedEchoOptions) -> Tool:
    """Return a tool whose work is done by a service outside."""

    @tool(execution="external-dispatch", idempotent=True, expires_in=options.expires_in, timeout=options.timeout)
    def test_external_async(message: str, ctx: ToolContext) -> None:
        """Return a message, by way of a service outside.

        Args:
            message: Any text.
            ctx: Context of the call.
        """
        assert ctx.external is not None  # set for tools with this execution
        _post(options, _job(options, ctx.external, message))

    return test_external_async


def _job(options: DispatchedEchoOptions, external: ExternalCall, message: str) -> dict[str, Any]:
    base, token = options.completion_base_url, options.completion_bearer_token
    return {
        "resultId": external.result_id,
        "input": {"message": message},
        "delay": options.delay,
        "completeUrl": external.complete_url or (base.rstrip("/") + external.complete_path if base else None),
        "token": external.token or (token.get_secret_value() if token is not None else None),
        "headers": dict(external.headers),
    }


def _post(options: DispatchedEchoOptions, job: dict[str, Any]) -> None:
    """Hand a job to the service; it accepts the same job twice, so that a dispatch can be repeated.

    Raises:
        ToolError: the service did not accept it.
    """
    headers = {"Content-Type": "application/json", "Idempotency-Key": job["resultId"]}
    url = f"{options.service_url.rstrip('/')}/jobs"
    request = Request(url, json.dumps(job).encode(), headers)  # noqa: S310  (checked to be HTTP)
    try:
        with urlopen(request, timeout=options.timeout):  # noqa: S310  (checked to be HTTP)
            pass
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()  # it is the response, with its connection
        text = f"The service did not accept the work: {error}"
        raise ToolError(text, error_type="unavailable", error_kind="unavailable") from error
