"""OpenTelemetry resource of the process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.util.types import AttributeValue


def make_resource(service_name: str, attributes: Resource | Mapping[str, AttributeValue] | None = None) -> Resource:
    """Return the resource of this process.

    `OTEL_SERVICE_NAME` wins over the name in the code, so that a deployment can rename a service. Attributes given in
    the code win over `OTEL_RESOURCE_ATTRIBUTES`, as OpenTelemetry specifies.
    """
    given = attributes if isinstance(attributes, Resource) else Resource(dict(attributes or {}))
    name = os.environ.get("OTEL_SERVICE_NAME", "").strip() or service_name
    return Resource.create().merge(given).merge(Resource({"service.name": name}))
