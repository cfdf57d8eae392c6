"""The SDK's metrics in a forked child: it starts without the measurements and locks of its parent.

A lock that a thread of the parent holds during the fork is never released in the child: the next measurement or
collection would never return. And the child would export the counts of its parent once more, as its own.

The SDK offers no way to do this. It takes the private attributes that `start_anew` uses; with a version that lacks one,
a child goes on from the counts of its parent, and can hang if it was forked while another thread recorded.
"""

from __future__ import annotations

import logging
import threading
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from opentelemetry.sdk import resources
from opentelemetry.sdk.metrics import Meter, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource

from pellucid.concurrency.forks import in_child
from pellucid_exporters import sdk_internals

_log: Final = logging.getLogger(__name__)


def start_anew_in_child(provider: MeterProvider) -> None:
    """Register a provider, of either recorder, to start anew in each forked child."""
    if _is_supported():
        in_child(provider, start_anew)


def start_anew(provider: MeterProvider) -> None:
    """Replace the storage of each reader by an empty one, and all locks between an instrument and its reader."""
    for mapping in (sdk_internals.ExponentMapping, sdk_internals.LogarithmMapping):
        mapping._mappings_lock = threading.Lock()
    resources._service_instance_id_lock = threading.Lock()  # the SDK takes it next, for the child's own id
    meters: dict[Any, Any] = provider._meters
    for meter in meters.values():
        meter._instrument_registration_lock = threading.Lock()
        meter._instrument_ids_lock = threading.Lock()
        for name in meter._instrument_ids.keys() - meter._instrument_id_instrument.keys():
            del meter._instrument_ids[name]  # a thread of the parent was making this instrument
    consumer = provider._measurement_consumer
    consumer._lock = threading.Lock()
    readers = list(consumer._reader_storages)
    consumer._reader_storages = {}
    for reader in readers:
        consumer.add_metric_reader(reader)


@cache
def _is_supported() -> bool:
    """Return whether the installed SDK has what `start_anew` uses; log what it lacks."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], Resource({}), shutdown_on_exit=False)
    meter = provider.get_meter("trial")
    if not isinstance(meter, Meter):  # the environment has disabled the SDK
        return True
    counter = meter.create_counter("trial")
    try:
        counter.add(1)
        start_anew(provider)
        counter.add(1)
        data: Any = reader.get_metrics_data()
        (point,) = data.resource_metrics[0].scope_metrics[0].metrics[0].data.data_points
        if point.value == 1:
            return True
        reason = "a reader keeps its counts"
    except Exception as error:  # noqa: BLE001  (what a missing part causes is unknown)
        reason = f"{type(error).__name__}: {error}"
    sdk = version("opentelemetry-sdk")
    _log.info("children of a fork go on from the counts of their parent: opentelemetry-sdk %s (%s)", sdk, reason)
    return False
