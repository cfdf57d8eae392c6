"""An agent in a function of AWS Lambda, whose telemetry arrives before the function is frozen.

Needs `pip install pellucid`. The OTEL_* variables say where telemetry goes.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.context import attach, detach
from opentelemetry.propagate import extract

from pellucid import Agent
from pellucid.testing import FunctionModel
from pellucid_exporters import configure
from pellucid_exporters.serverless import flush_after

telemetry = configure("orders")
agent = Agent("orders", model=FunctionModel(lambda _: "It arrives tomorrow."))  # stands for a model
agent.warm_up_sync()  # while the function starts


@flush_after(telemetry)
def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Answer a request of API Gateway, in the trace of its caller."""
    headers: dict[str, str] = event.get("headers") or {}
    token = attach(extract(headers))
    try:
        result = agent.run_sync(event["body"])
    finally:
        detach(token)
    return {"statusCode": 200, "body": result.output}


def main() -> None:
    """Stand for AWS Lambda: call the handler twice."""

    class Context:
        def get_remaining_time_in_millis(self) -> int:
            return 30_000

    for order in (17, 18):
        print(handler({"body": f"Where is order {order}?"}, Context()))


if __name__ == "__main__":
    main()
