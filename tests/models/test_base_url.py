"""Errors of a model whose base URL is wrong: they name it, and what it is likely to be."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from pellucid import Message, ModelError, ModelRequest
from pellucid.models import AnthropicModel, GeminiModel, OpenAIModel
from support.models import read
from support.ports import free_port
from support.vendor_server import Answer, answer_json

if TYPE_CHECKING:
    from support.vendor_server import VendorServer

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet_opentelemetry")]

ASKED = ModelRequest(messages=[Message("user", "hi")])
PAGE = Answer(status=404, headers={"content-type": "text/html; charset=utf-8"}, body=[b"<html>sk-from-a-page</html>"])


async def error_of(model: Any, *, stream: bool = False) -> ModelError:
    """Return the error of a call."""
    async with aclosing(model):
        with pytest.raises(ModelError) as caught:
            await (read(model, ASKED) if stream else model.generate(ASKED))
    return caught.value


def openai_model(url: str, **options: Any) -> OpenAIModel:
    """Return a model at a base URL."""
    return OpenAIModel("qwen3", base_url=url, api_key="sk-test-0123456789", **options)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (PAGE, "a web page"),
        (Answer(status=404), "nothing"),
        (answer_json({"detail": "Not Found"}, status=404), "'Not Found'"),
        (answer_json({"path": "/"}, status=404), "other JSON"),
        (answer_json([1], status=405), "other JSON"),
        (Answer(status=404, headers={"content-type": "text/plain"}, body=[b"404 page not found"]), "text/plain"),
    ],
)
async def test_a_base_url_without_version(server: VendorServer, answer: Answer, said: str, stream: bool) -> None:
    """The error names the base URL, what the server answered, and the URL with `/v1`."""
    server.answers(answer)
    error = await error_of(openai_model(f"{server.url}/"), stream=stream)
    assert f"no API at {server.url}/chat/completions, which answered {said}" in str(error)
    assert f"the base URL is likely to be {server.url}/v1" in str(error)
    assert "sk-from-a-page" not in str(error)
    assert (error.status, error.error_kind) == (answer.status, "invalid_request")


async def test_a_base_url_with_the_path_of_the_api(server: VendorServer) -> None:
    """The error says where it must end."""
    server.answers(PAGE)
    error = await error_of(openai_model(f"{server.url}/v1/chat/completions"))
    assert f"the base URL must end before /chat/completions: {server.url}/v1" in str(error)


async def test_a_server_without_the_responses_api(server: VendorServer) -> None:
    """A base URL that looks right may be that of a server with Chat Completions only."""
    server.answers(answer_json({"detail": "Not Found"}, status=404))
    error = await error_of(openai_model(f"{server.url}/v1", api="responses"))
    assert f'check the base URL {server.url}/v1, or use api="chat" if the server lacks this API' in str(error)


async def test_an_unknown_model_is_not_a_wrong_base_url(server: VendorServer) -> None:
    """The API's own 404 says what it says, in either form."""
    for body in ({"error": {"message": "No model qwen3."}}, {"object": "error", "message": "No model qwen3."}):
        server.answers(answer_json(body, status=404))
        text = str(await error_of(openai_model(server.url)))
        assert "No model qwen3." in text
        assert "base URL" not in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_page_in_place_of_an_answer(server: VendorServer, stream: bool) -> None:
    """A server that answers every path with its start page has no API either."""
    server.always(Answer(headers={"content-type": "text/html"}, body=[b"<html>Chat with us</html>"]))
    for model in (openai_model(server.url), AnthropicModel("claude", api_key="k" * 20, base_url=server.url)):
        error = await error_of(model, stream=stream)
        assert "which answered a web page" in str(error)
        assert server.url in str(error)
        assert error.error_kind == "invalid_response"


async def test_a_base_url_of_anthropic_with_a_version(server: VendorServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter adds the version: the error says where `ANTHROPIC_BASE_URL` must end."""
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"{server.url}/v1")
    server.answers(PAGE)
    error = await error_of(AnthropicModel("claude", api_key="k" * 20))
    assert server.requests[0].path == "/v1/v1/messages"
    assert f"the base URL must end before /v1: {server.url}" in str(error)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_base_url_where_nobody_listens(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """A refused connection names the base URL, from wherever it came, without its password and query."""
    shown = f"http://127.0.0.1:{free_port()}/proxy"
    url = f"{shown.replace('//', '//me:hidden-password@')}?key=hidden-key"
    for variable in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"):
        monkeypatch.setenv(variable, url)
    key = "k" * 20
    models = [OpenAIModel("m", api_key=key), AnthropicModel("m", api_key=key), GeminiModel("m", api_key=key)]
    for model in models:
        error = await error_of(model, stream=stream)
        assert f"(base URL {shown})" in str(error)
        assert "hidden" not in str(error)
        assert error.error_kind == "unavailable"
