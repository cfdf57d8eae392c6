from __future__ import annotations

import subprocess
import sys
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import pytest

from pellucid import Agent, ConfigError
from pellucid.models import Model
from pellucid.models.names import HOSTS, resolve
from support.models import HELLO
from support.openai_wire import completion
from support.processes import PATIENCE
from support.runs import within
from support.vendor_server import answer_json, vendor_server

pytestmark = pytest.mark.anyio

KEYS = {host.key: f"key-of-{host.key}" for host in HOSTS.values() if host.key} | {
    "OPENAI_API_KEY": "key-1",
    "ANTHROPIC_API_KEY": "key-1",
    "GEMINI_API_KEY": "key-1",
}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_every_host_gives_a_model(host: str) -> None:
    """Each host gives a model with its name, vendor and address."""
    model = resolve(f"{host}:some/model:latest")
    assert isinstance(model, Model)
    assert model.name == "some/model:latest"
    address, port = (getattr(model, name) for name in ("server_address", "server_port"))
    assert address
    assert port
    told = HOSTS[host]
    if told.base_url is not None:
        assert address in told.base_url
        assert model.provider_name == told.provider_name


def test_an_agent_takes_a_name() -> None:
    """An agent accepts the name of a model."""
    assert "gpt-6-sol" in repr(Agent("a", model="openai:gpt-6-sol"))


async def test_openai_s_key_goes_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of OpenAI is not sent to other hosts."""
    with vendor_server() as server:
        server.always(answer_json(completion({"content": "Hi"})))
        for name in ("ollama", "groq"):
            monkeypatch.setitem(HOSTS, name, replace(HOSTS[name], base_url=f"{server.url}/v1"))
            async with aclosing(cast("Any", resolve(f"{name}:some"))) as model:
                await within(model.generate(HELLO))
    sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer none", "Bearer key-of-GROQ_API_KEY"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpt-6-sol", "write `host:model`"),
        ("openai:", "write `host:model`"),
        ("opena:gpt-6-sol", "did you mean 'openai'"),
        ("OpenAI:gpt-6-sol", "did you mean 'openai'"),
        ("claude:sonnet", "write `host:model`"),
        ("openai: ", "write `host:model`"),
        ("", "write `host:model`"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str, said: str) -> None:
    """The error about a wrong name says what to write."""
    with pytest.raises(ConfigError, match=said):
        resolve(name)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("groq:llama", "GROQ_API_KEY"),
        ("openrouter:x", "OPENROUTER_API_KEY"),
        ("openai:gpt-6-sol", "OPENAI_API_KEY"),
        ("anthropic:claude", "ANTHROPIC_API_KEY"),
        ("gemini:flash", "GEMINI_API_KEY"),
    ],
)
def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch, name: str, variable: str) -> None:
    """A missing key is an error when the model is made, which names the variable."""
    monkeypatch.delenv(variable)
    with pytest.raises(ConfigError, match=variable):
        resolve(name)


@pytest.mark.parametrize(
    ("package", "adapter", "extra"),
    [
        ("openai", "OpenAIModel", "openai"),
        ("anthropic", "AnthropicModel", "anthropic"),
        ("google.genai", "GeminiModel", "gemini"),
        ("httpx2", "OpenAIModel", "openai"),
    ],
)
def test_a_missing_package_is_named(package: str, adapter: str, extra: str) -> None:
    """The error about a missing package names the extra."""
    code = f"import sys\nsys.modules[{package!r}] = None\nfrom pellucid.models import {adapter}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode != 0
    assert f"pip install 'pellucid[{extra}]'" in done.stderr


def test_a_missing_package_whose_namespace_is_there_is_named() -> None:
    """A missing `google.genai` names the extra, even if another package `google` is there."""
    code = "import google\ngoogle.__path__ = []\nfrom pellucid.models import GeminiModel\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert "pip install 'pellucid[gemini]'" in done.stderr


def test_importing_the_models_loads_no_vendor() -> None:
    """Importing `pellucid.models` loads no vendor's package, and an adapter loads only its own."""
    code = (
        "import sys, pellucid, pellucid.models\n"
        "loaded = {'openai', 'anthropic', 'google.genai', 'httpx2', 'genai_prices'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "from pellucid.models import OpenAIModel\n"
        "assert not {'anthropic', 'google.genai'} & set(sys.modules)\n"
        "try:\n"
        "    pellucid.models.NoSuchModel\n"
        "except AttributeError as error:\n"
        "    assert 'NoSuchModel' in str(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
