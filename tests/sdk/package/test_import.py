"""Costs and promises of importing the SDK."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import pellucid
from bench.measure import BUDGETS, first_run, weight
from pellucid import semconv
from pellucid.semconv.servers import ALL_METRICS

HEAVY = (
    "opentelemetry.sdk",
    "opentelemetry.exporter",
    "grpc",
    "prometheus_client",
    "mcp",
    "starlette",
    "rich",
    "trio",
    "structlog",
    "pydantic",
    "jsonschema_rs",
    "docstring_parser",
    "openai",
    "anthropic",
    "google",
    "genai_prices",
    "httpx2",
    "httpx",
    "tavily",
    "urllib.request",
    "http.server",
)


UNUSED = (
    "concurrency.single_flight",
    "concurrency.turns",
    "models.fallback",
    "models.price_table",
    "providers.combination",
    "providers.fetches",
    "providers.hub",
    "providers.readiness",
    "providers.registry",
    "providers.skills",
    "providers.wrappers",
    "reliability",
    "run.stream",
    "run.subagent",
    "run.warm_up",
    "selection.activation",
    "selection.explain",
    "selection.meta",
    "selection.permission",
    "selection.pins",
    "selection.policy",
    "telemetry.hub_requests",
    "telemetry.hubs",
    "telemetry.labels",
    "telemetry.metrics",
    "telemetry.recording",
    "telemetry.sanitize",
    "telemetry.secrets",
    "testing.hubs",
    "testing.vendor",
    "tools.catalog_records",
    "tools.provider_tool",
    "tools.search",
)
"""Modules of features that a run of an agent with one tool, without telemetry, does not use."""

LAZY_FACES = ("models", "providers", "selection", "telemetry", "testing", "tools")
"""Packages whose names are loaded at their first use."""


def modules_after(code: str) -> list[str]:
    """Return the modules that a process has loaded after running a piece of code."""
    code += "; import sys; print('\\n'.join(sys.modules))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_import_loads_nothing_that_is_optional_or_heavy() -> None:
    """Importing an agent loads no OpenTelemetry SDK, no exporter and no extra."""
    loaded = modules_after("import pellucid.testing; from pellucid import Agent, DiscoveryProvider, Reliability, tool")
    found = [name for name in loaded if name.startswith(tuple(f"{heavy}." for heavy in HEAVY)) or name in HEAVY]
    assert found == []


def test_names_are_loaded_at_their_first_use() -> None:
    """`import pellucid` loads no room, and rooms are attributes without an import."""
    loaded = modules_after("import pellucid")
    assert [name for name in loaded if name.startswith(("anyio", "opentelemetry", "pellucid."))] == [
        "pellucid.module_names",
        "pellucid.version",
    ]
    assert "pellucid.events" in modules_after("import pellucid; pellucid.events.Event")
    assert "pellucid.agent" not in modules_after("from pellucid import ToolError, Usage")


def test_a_first_run_loads_no_code_for_what_it_does_not_use() -> None:
    """A first run loads no module of features that the agent does not use."""
    loaded = first_run()
    assert "pellucid.run.loop" in loaded
    assert [name for name in UNUSED if f"pellucid.{name}" in loaded] == []
    assert [name for name, number in weight(loaded.values()) if number > BUDGETS[name]] == []


def test_what_records_is_loaded_before_the_first_run_with_telemetry() -> None:
    """Configured telemetry loads the search for secrets before the first run."""
    agent = "from pellucid import Agent; from pellucid.testing import ScriptedModel; Agent('a', model=ScriptedModel())"
    opentelemetry = (
        "from opentelemetry import trace; from opentelemetry.sdk.trace import TracerProvider; "
        "trace.set_tracer_provider(TracerProvider())"
    )
    assert "pellucid.telemetry.secrets.search" not in modules_after(agent)
    for configured in (
        "import pellucid_exporters; pellucid_exporters.configure('x', otlp='http://127.0.0.1:1')",
        f"{opentelemetry}; {agent}",
    ):
        assert "pellucid.telemetry.secrets.search" in modules_after(configured)


@pytest.mark.parametrize("room", LAZY_FACES)
def test_names_of_rooms_are_there_however_they_are_loaded(room: str) -> None:
    """Each name that a room lists is an attribute, and no module of the room hides it."""
    code = (
        "import importlib, pkgutil\n"
        f"room = importlib.import_module('pellucid.{room}')\n"
        "assert set(room.__all__) <= set(dir(room))\n"
        "first = {name: getattr(room, name) for name in room.__all__}\n"
        "assert not [name for name, value in first.items() if type(value) is type(room)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    package = importlib.import_module(f"pellucid.{room}")
    inner = {module.name for module in pkgutil.iter_modules(package.__path__)}
    lazy = set(package.__all__) - set(vars(package))
    assert sorted(inner & lazy) == []  # importing the module would hide the name


def test_a_misspelt_name_is_reported() -> None:
    """A misspelt name raises the usual errors of a module."""
    with pytest.raises(AttributeError, match=r"^module 'pellucid' has no attribute 'Agnet'$"):
        pellucid.Agnet  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match=r"^cannot import name 'Agnet' from 'pellucid' "):
        from pellucid import Agnet  # type: ignore[attr-defined]  # noqa: F401
    assert set(pellucid.__all__) <= set(dir(pellucid))


def test_public_names_exist() -> None:
    """`pellucid.__all__` lists each name once, and every name exists."""
    assert len(pellucid.__all__) == len(set(pellucid.__all__))
    assert [name for name in pellucid.__all__ if not hasattr(pellucid, name)] == []


@pytest.mark.parametrize("metric", ALL_METRICS, ids=lambda metric: metric.name)
def test_histograms_have_float_bounds_of_their_own(metric: semconv.Metric) -> None:
    """Every histogram has ascending float bounds, and other metrics have none."""
    if metric.kind == "histogram":
        assert metric.buckets
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert all(type(bound) is float for bound in metric.buckets)
    else:
        assert metric.buckets == ()


def test_metric_labels_are_a_closed_list_without_ids() -> None:
    """No metric has the id of a run, a call or a conversation among its labels."""
    forbidden = {semconv.RUN_ID, semconv.TOOL_CALL_ID, semconv.CONVERSATION_ID}
    assert [metric.name for metric in ALL_METRICS if forbidden & set(metric.attributes)] == []


def test_exporters_load_only_what_is_used() -> None:
    """Importing `pellucid_exporters` and its pytest plugins loads no exporter, and all names exist."""
    code = (
        "import importlib, sys, pellucid_exporters, pellucid_exporters.pytest_plugin\n"
        "packages = [importlib.import_module(name.partition('.')[0])\n"
        "            for name in pellucid_exporters.pytest_plugin.pytest_plugins if importlib.import_module(name)]\n"
        "forbidden = {'opentelemetry.sdk', 'grpc', 'prometheus_client', 'rich', 'pellucid.agent', 'pellucid.models'}\n"
        "assert not forbidden & set(sys.modules)\n"
        "print([getattr(package, name) for package in packages for name in package.__all__])\n"
        "print([getattr(pellucid_exporters, name) for name in pellucid_exporters.__all__])"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_otlp_over_http_loads_no_grpc() -> None:
    """`configure(otlp=...)` over HTTP loads no gRPC."""
    code = (
        "import sys, pellucid_exporters\n"
        "telemetry = pellucid_exporters.configure('x', otlp='http://127.0.0.1:1')\n"
        "assert 'requests' in sys.modules\n"
        "assert not {'grpc', 'rich'} & set(sys.modules)\n"
        "telemetry.shutdown(0.1)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
