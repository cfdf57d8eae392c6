"""Anthropic's Messages API.

Translation of the request and of the answer is in `anthropic_messages`; this is the client, the stream and its errors.
See https://platform.claude.com/docs/en/api/messages.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, Final, Literal, cast

import anthropic
import httpx2

from pellucid.errors import ConfigError, ErrorKind, ModelError
from pellucid.models.anthropic_messages import SETTINGS, body_of, join, response_of
from pellucid.models.base import ModelDelta, ModelRequest, ModelResponse, StreamItem
from pellucid.models.sse import read_events
from pellucid.models.wire import TIMEOUT, Clients, failure, refuse_unknown, server_of
from pellucid.types import JSONObject

MOST_PAUSES: Final = 5
"""Times that a turn which the vendor paused is gone on with, as its own tools make it do."""

CREDENTIALS: Final = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_PROFILE",
    "ANTHROPIC_IDENTITY_TOKEN",
    "ANTHROPIC_IDENTITY_TOKEN_FILE",
)
"""Variables in which the vendor's SDK looks for a key, or for another way to get one."""

_KINDS: Final[Mapping[str, ErrorKind]] = {
    "api_error": "unavailable",
    "authentication_error": "auth",
    "billing_error": "auth",
    "invalid_request_error": "invalid_request",
    "not_found_error": "invalid_request",
    "overloaded_error": "unavailable",
    "permission_error": "auth",
    "rate_limit_error": "rate_limited",
    "request_too_large": "invalid_request",
    "timeout_error": "timeout",
}


class AnthropicModel:
    """A model of Anthropic's: `AnthropicModel("claude-sonnet-5-5")`.

    Args:
        name: The model's name.
        api_key: `ANTHROPIC_API_KEY` if not given.
        base_url: `ANTHROPIC_BASE_URL`, or Anthropic's own.
        max_tokens: Sent when the agent's settings have none, because the API asks for it.
        cache: Mark the stable beginning of requests (tools, instructions) and the growing history for the vendor's
            prompt cache; `"1h"` keeps them for an hour instead of five minutes.
        server_tools: Tools that Anthropic runs itself, as its API defines them, such as
            `{"type": "web_search_20260318", "name": "web_search"}`.
        timeout: Seconds, or an `httpx2.Timeout`.
        client: A client of the vendor's SDK, used as it is: for Bedrock, Vertex AI, proxies.

    Raises:
        ConfigError: there is no key.
    """

    provider_name = "anthropic"
    native_output = True

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        max_tokens: int = 16_384,
        cache: bool | Literal["1h"] = True,
        server_tools: Sequence[Mapping[str, Any]] = (),
        timeout: float | httpx2.Timeout = TIMEOUT,
        client: anthropic.AsyncAnthropic | None = None,
    ) -> None:
        if client is None and api_key is None and not any(os.environ.get(variable) for variable in CREDENTIALS):
            raise ConfigError(f"model {name!r}: set the environment variable ANTHROPIC_API_KEY, or give api_key=")
        self.name = name
        self._client = client
        self._max_tokens = max_tokens
        self._cache: JSONObject | None = None
        if cache:
            self._cache = {"type": "ephemeral", "ttl": "1h"} if cache == "1h" else {"type": "ephemeral"}
        self._server_tools = [dict(each) for each in server_tools]
        # Its own spans would count every call twice; the context of ours still goes along in the headers.
        self._clients = Clients(
            lambda: anthropic.AsyncAnthropic(
                api_key=api_key,
                base_url=base_url,
                timeout=timeout,
                max_retries=0,
                open_telemetry=False,
                # The SDK's default closes itself when it is collected, in whichever event loop runs then.
                http_client=anthropic.DefaultAsyncHttpxClient(timeout=timeout),
            )
        )
        url = str(client.base_url) if client is not None else base_url or os.environ.get("ANTHROPIC_BASE_URL")
        self.server_address, self.server_port = server_of(url or "https://api.anthropic.com")
        keys = (client.api_key, client.auth_token) if client is not None else (api_key,)
        self._secrets = (*keys, *(os.environ.get(variable) for variable in CREDENTIALS[:2]))

    def __repr__(self) -> str:
        return f"AnthropicModel({self.name!r})"

    async def generate(self, request: ModelRequest) -> ModelResponse:
        """Return the whole answer."""
        body = self._body(request)
        turns: list[JSONObject] = []
        with self._failing():
            while True:
                message = await self._api().messages.create(**body, stream=False)
                if not isinstance(message, anthropic.types.Message):
                    raise ValueError(f"the answer is no JSON object but {str(message)[:200]!r}")  # noqa: TRY004  (an answer)
                turns.append(message.to_dict(mode="json"))
                if not self._goes_on(turns, body):
                    return response_of(join(turns))

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Yield what arrives, and last the whole answer."""
        body = self._body(request)
        turns: list[JSONObject] = []
        with self._failing():
            while True:
                turn = _Turn()
                answer = await self._api().messages.create(**body, stream=True)
                async with aclosing(read_events(answer.response, turn.is_over)) as events:
                    async for data in events:
                        event = json.loads(data)
                        if event.get("type") == "error":
                            raise self._refused(event, answer.response)
                        for delta in turn.add(event):
                            yield delta
                turns.append(turn.whole())
                if not self._goes_on(turns, body):
                    break
            yield response_of(join(turns))

    async def aclose(self) -> None:
        """Close the connections of this event loop; a client that was given is its owner's to close."""
        await self._clients.aclose()

    def _api(self) -> anthropic.AsyncAnthropic:
        return self._client if self._client is not None else self._clients.get()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        refuse_unknown(self.name, request.settings, SETTINGS)
        body = body_of(request, self.name, cache=self._cache, server_tools=self._server_tools)
        return {"max_tokens": self._max_tokens, **body}

    def _goes_on(self, turns: Sequence[JSONObject], body: dict[str, Any]) -> bool:
        """Whether the vendor paused the turn; then what came so far is part of the next request."""
        if turns[-1].get("stop_reason") != "pause_turn" or len(turns) > MOST_PAUSES:
            return False
        body["messages"] = [*body["messages"], {"role": "assistant", "content": turns[-1]["content"]}]
        return True

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Raise what goes wrong as a `ModelError`."""
        try:
            yield
        except ModelError:
            raise
        except anthropic.APITimeoutError as error:
            raise self._failure(error, kind="timeout") from error
        except anthropic.APIStatusError as error:
            raise self._refused(error.body, error.response, error) from error
        except anthropic.APIResponseValidationError as error:
            raise self._failure(error, kind="invalid_response", status=error.status_code) from error
        except anthropic.APIConnectionError as error:
            raise self._failure(error, kind="unavailable") from error
        except (AttributeError, LookupError, TypeError) as error:  # an answer without what it must have
            raise self._failure(error, kind="invalid_response") from error
        except Exception as error:
            raise self._failure(error) from error

    def _refused(self, body: object, response: httpx2.Response, error: Exception | None = None) -> ModelError:
        """Return what to raise for an error that the API tells of, at the beginning or in the middle of a stream."""
        inner = body.get("error") if isinstance(body, dict) else None
        detail: Mapping[str, Any] = inner if isinstance(inner, dict) else {}
        is_status = response.status_code >= httpx2.codes.BAD_REQUEST
        return self._failure(
            error or ConnectionError(str(detail)),
            kind=_KINDS.get(str(detail.get("type")), None if is_status else "unavailable"),
            message=str(detail.get("message") or error or body),
            status=response.status_code if is_status else None,
            request_id=response.headers.get("request-id"),
            headers=response.headers,
        )

    def _failure(self, error: Exception, **told: Any) -> ModelError:
        return failure(self.name, error, secrets=self._secrets, **told)


class _Turn:
    """Puts the events of a stream together to the message that `generate` would get."""

    def __init__(self) -> None:
        self._message: JSONObject = {}
        self._inputs: dict[int, str] = {}
        self._is_over = False

    def is_over(self) -> bool:
        """Whether the message has come to its end."""
        return self._is_over

    def add(self, event: JSONObject) -> list[ModelDelta]:
        """Take an event; return what a reader gets to see of it."""
        kind = event.get("type")
        if kind == "message_start":
            self._message = {**event["message"], "content": []}
        elif kind == "content_block_start":
            return self._begin(event["content_block"])
        elif kind == "content_block_delta":
            return self._extend(event["index"], event["delta"])
        elif kind == "content_block_stop" and event["index"] in self._inputs:
            self._message["content"][event["index"]]["input"] = _parsed(self._inputs.pop(event["index"]))
        elif kind == "message_delta":
            known = {name: value for name, value in event["delta"].items() if value is not None}
            counted = {name: value for name, value in (event.get("usage") or {}).items() if value is not None}
            self._message = {**self._message, **known, "usage": {**(self._message.get("usage") or {}), **counted}}
        elif kind == "message_stop":
            self._is_over = True
        return []

    def whole(self) -> JSONObject:
        """Return the message.

        Raises:
            ConnectionError: the stream ended before the message did.
        """
        if not self._is_over:
            raise ConnectionError("the stream ended before the answer did")
        return self._message

    def _begin(self, block: JSONObject) -> list[ModelDelta]:
        self._message["content"].append(dict(block))
        return [ModelDelta("tool_call", block["name"])] if block["type"] == "tool_use" else []

    def _extend(self, index: int, delta: JSONObject) -> list[ModelDelta]:
        block = self._message["content"][index]
        kind = delta["type"]
        if kind == "text_delta":
            block["text"] += delta["text"]
            return [ModelDelta("text", delta["text"])]
        if kind == "thinking_delta":
            block["thinking"] += delta["thinking"]
            return [ModelDelta("reasoning", delta["thinking"])]
        if kind == "signature_delta":
            block["signature"] = delta["signature"]
        elif kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]
        return []


def _parsed(text: str) -> Any:
    """Return the input of a tool call: what the JSON says, or the text itself if it is none."""
    if not text:
        return {}
    try:
        return cast("Any", json.loads(text))
    except ValueError:
        return text
