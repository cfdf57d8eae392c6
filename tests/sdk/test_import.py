"""What importing the SDK costs and promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pellucid
from pellucid import semconv

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


def modules_after(code: str) -> list[str]:
    """Return the modules that a process has loaded after some code."""
    code += "; import sys; print('\\n'.join(sys.modules))"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()


def test_import_loads_nothing_that_is_optional_or_heavy() -> None:
    """Importing an agent loads no SDK of OpenTelemetry, no exporter, no extra, nothing that only some tools need."""
    loaded = modules_after("import pellucid.testing; from pellucid import Agent, DiscoveryProvider, Reliability, tool")
    found = [name for name in loaded if name.startswith(tuple(f"{heavy}." for heavy in HEAVY)) or name in HEAVY]
    assert found == []


def test_names_are_loaded_at_their_first_use() -> None:
    """`import pellucid` loads no other package and no room; rooms are attributes without an import."""
    loaded = modules_after("import pellucid")
    assert [name for name in loaded if name.startswith(("anyio", "opentelemetry", "pellucid."))] == [
        "pellucid.module_names",
        "pellucid.version",
    ]
    assert "pellucid.events" in modules_after("import pellucid; pellucid.events.Event")
    assert "pellucid.agent" not in modules_after("from pellucid import ToolError, Usage")


def test_a_misspelt_name_is_reported() -> None:
    """The errors are those of a module whose names are all there."""
    with pytest.raises(AttributeError, match=r"^module 'pellucid' has no attribute 'Agnet'$"):
        pellucid.Agnet  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match=r"^cannot import name 'Agnet' from 'pellucid' "):
        from pellucid import Agnet  # type: ignore[attr-defined]  # noqa: F401
    assert set(pellucid.__all__) <= set(dir(pellucid))


def test_public_names_exist() -> None:
    """`pellucid.__all__` has no repetition, and every name in it is there."""
    assert len(pellucid.__all__) == len(set(pellucid.__all__))
    assert [name for name in pellucid.__all__ if not hasattr(pellucid, name)] == []


@pytest.mark.parametrize("metric", semconv.METRICS, ids=lambda metric: metric.name)
def test_histograms_have_float_bounds_of_their_own(metric: semconv.Metric) -> None:
    """Every histogram advises ascending float bounds, so that `le` never depends on the type of a number."""
    if metric.kind == "histogram":
        assert metric.buckets
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert all(type(bound) is float for bound in metric.buckets)
    else:
        assert metric.buckets == ()


def test_metric_labels_are_a_closed_list_without_ids() -> None:
    """No instrument has the id of a run, call or conversation among its labels."""
    forbidden = {semconv.RUN_ID, semconv.TOOL_CALL_ID, semconv.CONVERSATION_ID}
    assert [metric.name for metric in semconv.METRICS if forbidden & set(metric.attributes)] == []


def test_exporters_load_only_what_is_used() -> None:
    """Importing the package and its pytest plugin loads no exporter; each name of the package is there all the same."""
    code = (
        "import sys, pellucid_exporters, pellucid_exporters.pytest_plugin\n"
        "assert not {'opentelemetry.sdk', 'grpc', 'prometheus_client', 'rich'} & set(sys.modules)\n"
        "print([getattr(pellucid_exporters, name) for name in pellucid_exporters.__all__])"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_otlp_over_http_loads_no_grpc() -> None:
    """`configure(otlp=...)` loads the transport that it uses."""
    code = (
        "import sys, pellucid_exporters\n"
        "telemetry = pellucid_exporters.configure('x', otlp='http://127.0.0.1:1')\n"
        "assert 'requests' in sys.modules\n"
        "assert not {'grpc', 'rich'} & set(sys.modules)\n"
        "telemetry.shutdown(0.1)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
