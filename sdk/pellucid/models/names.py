"""Models by name: `openai:gpt-6-sol`, `anthropic:claude-sonnet-5-5`, `ollama:qwen3`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from pellucid.errors import ConfigError
from pellucid.models.base import Model

ADAPTERS: Final[Mapping[str, tuple[str, str]]] = {
    "OpenAIModel": ("openai", "openai"),
    "AnthropicModel": ("anthropic", "anthropic"),
    "GeminiModel": ("gemini", "google.genai"),
}
"""Classes, their module and extra, and the vendor's package. They are loaded on first use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A server of models.

    Attributes:
        adapter: Name of the adapter class for its protocol.
        base_url: Its base URL, if not that of the adapter's vendor.
        key: Environment variable of its key; None for local servers.
        provider_name: Value of `gen_ai.provider.name`, if not the adapter's.
        options: Further arguments of the adapter.
    """

    adapter: str = "OpenAIModel"
    base_url: str | None = None
    key: str | None = None
    provider_name: str | None = None
    options: Mapping[str, Any] | None = None


HOSTS: Final[Mapping[str, Host]] = {
    "openai": Host(),
    "openai-chat": Host(options={"api": "chat"}),
    "anthropic": Host(adapter="AnthropicModel"),
    "gemini": Host(adapter="GeminiModel"),
    "google": Host(adapter="GeminiModel"),
    "ollama": Host(base_url="http://localhost:11434/v1", provider_name="ollama"),
    "lmstudio": Host(base_url="http://localhost:1234/v1", provider_name="lmstudio"),
    "llamacpp": Host(base_url="http://localhost:8080/v1", provider_name="llamacpp"),
    "vllm": Host(base_url="http://localhost:8000/v1", provider_name="vllm"),
    "deepseek": Host(base_url="https://api.deepseek.com", key="DEEPSEEK_API_KEY", provider_name="deepseek"),
    "groq": Host(base_url="https://api.groq.com/openai/v1", key="GROQ_API_KEY", provider_name="groq"),
    "mistral": Host(base_url="https://api.mistral.ai/v1", key="MISTRAL_API_KEY", provider_name="mistral_ai"),
    "openrouter": Host(base_url="https://openrouter.ai/api/v1", key="OPENROUTER_API_KEY", provider_name="openrouter"),
    "perplexity": Host(base_url="https://api.perplexity.ai", key="PERPLEXITY_API_KEY", provider_name="perplexity"),
    "together": Host(base_url="https://api.together.xyz/v1", key="TOGETHER_API_KEY", provider_name="together"),
    "xai": Host(base_url="https://api.x.ai/v1", key="XAI_API_KEY", provider_name="x_ai"),
}
"""Hosts by prefix. All except the vendors' own speak OpenAI's Chat Completions."""


def resolve(name: str) -> Model:
    """Return the model of a name such as `openai:gpt-6-sol`.

    Raises:
        ConfigError: the host is unknown, or its key or package is missing.
    """
    prefix, colon, model = name.partition(":")
    host = HOSTS.get(prefix)
    if not colon or not model.strip() or host is None:
        close = get_close_matches(prefix.strip().lower(), HOSTS, 1)
        hint = f"did you mean {close[0]!r}? " if close and host is None else ""
        raise ConfigError(
            f"unknown model {name!r}: {hint}write `host:model`, such as `openai:gpt-6-sol`, with one of the hosts "
            f"{', '.join(HOSTS)}; for any other server use OpenAIModel(name, base_url=...)"
        )
    options: dict[str, Any] = dict(host.options or {})
    if host.base_url is not None:
        # A placeholder, so that OpenAI's key is not sent to another server.
        options |= {"base_url": host.base_url, "api_key": "none"}
    if host.provider_name is not None:
        options["provider_name"] = host.provider_name
    if host.key is not None:
        if not (key := os.environ.get(host.key)):
            raise ConfigError(f"model {name!r}: set the environment variable {host.key} to your key")
        options["api_key"] = key
    return adapter(host.adapter)(model, **options)


def adapter(name: str) -> Callable[..., Model]:
    """Load the vendor's package, and return the adapter's class.

    Raises:
        ConfigError: the package is not installed.
    """
    module, package = ADAPTERS[name]
    try:
        adapter_class: Callable[..., Model] = getattr(import_module(f"pellucid.models.{module}"), name)
    except ImportError as error:
        if all(map(_is_installed, (package, "httpx2"))):
            raise
        raise ConfigError(f"{name} needs the package {package!r}: pip install 'pellucid[{module}]'") from error
    return adapter_class


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # its parent package is missing, or `sys.modules` blocks it
        return False
