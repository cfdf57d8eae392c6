"""Locks of the SDK's storage in a forked child.

A thread of the parent that was recording or collecting holds some of them; the copies in the child are never released.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from opentelemetry.sdk.metrics._internal.exponential_histogram.mapping.exponent_mapping import ExponentMapping
from opentelemetry.sdk.metrics._internal.exponential_histogram.mapping.logarithm_mapping import LogarithmMapping

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import Meter
    from opentelemetry.sdk.metrics._internal.measurement_consumer import SynchronousMeasurementConsumer


def renew_locks(consumer: SynchronousMeasurementConsumer, meters: Iterable[Meter]) -> None:
    """Replace the locks of registration and collection, and of all aggregations and reservoirs."""
    for mapping in (ExponentMapping, LogarithmMapping):
        mapping._mappings_lock = threading.Lock()
    for meter in meters:
        meter._instrument_registration_lock = threading.Lock()
        meter._instrument_ids_lock = threading.Lock()
    consumer._lock = threading.Lock()
    for storage in consumer._reader_storages.values():
        storage._lock = threading.RLock()
        for matches in storage._instrument_view_instrument_matches.values():
            for match in matches:
                match._lock = threading.Lock()
                for aggregation in match._attributes_aggregation.values():
                    aggregation._lock = threading.Lock()
                    if hasattr(aggregation._reservoir, "_lock"):  # one of a view need not have any
                        aggregation._reservoir._lock = threading.Lock()
