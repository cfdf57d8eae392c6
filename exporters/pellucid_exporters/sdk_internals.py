"""Private parts of OpenTelemetry's SDK: every name that Pellucid imports, and the effect of a version without it.

OpenTelemetry may change them in any release, so an import from here can fail.

For the own recorder of metrics. Without one of them its trial (`recorder/metrics/trial.py`) fails, and the SDK records
metrics, which takes longer:

- `_ExplicitBucketHistogramAggregation`, `_ExponentialBucketHistogramAggregation`, `_LastValueAggregation` and
  `_SumAggregation`: many measurements are added at once.
- `_DropAggregation`: what a view drops is left out.
- `_hash_attributes`: finds the series of a measurement in the SDK's storage.
- `Measurement`: cleans attributes, and carries what the SDK aggregates itself.

For forked children, which renew the locks of `ExponentMapping` and `LogarithmMapping`. Without one of them the trial in
`recorder/forks.py` fails, and a child goes on from the counts of its parent and can hang.

For type checkers only: `MetricReaderStorage`, `SynchronousMeasurementConsumer`, `_Aggregation`, `_HashedAttributes`,
`_Instrument`, `_ViewInstrumentMatch`.

`_Gauge`, here `ApiGauge` and `Gauge`, is the class of synchronous gauges, which have no public name in 1.44 and 1.45.
Without it `configure()` fails. So it does with OTLP without the modules of logs, which are no internals, but not yet
stable: `opentelemetry._logs`, `opentelemetry.sdk._logs` and `_log_exporter` of the exporters.

Private attributes of objects are used in `recorder/`, after the same trials, and by the exporters in `otlp/`, which say
what they do without them. Tests run with the lowest and the newest supported version.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from opentelemetry.metrics import _Gauge as ApiGauge
from opentelemetry.sdk.metrics import _Gauge as Gauge

# An import may fail: trials report the name that is missing. Each is on its own, so that the report is right.
with suppress(ImportError):
    from opentelemetry.sdk.metrics._internal.exponential_histogram.mapping.exponent_mapping import ExponentMapping
with suppress(ImportError):
    from opentelemetry.sdk.metrics._internal.exponential_histogram.mapping.logarithm_mapping import LogarithmMapping
with suppress(ImportError):
    from opentelemetry.sdk.metrics._internal._view_instrument_match import _hash_attributes
with suppress(ImportError):
    from opentelemetry.sdk.metrics._internal.measurement import Measurement
with suppress(ImportError):
    from opentelemetry.sdk.metrics._internal.aggregation import (
        _DropAggregation,
        _ExplicitBucketHistogramAggregation,
        _ExponentialBucketHistogramAggregation,
        _LastValueAggregation,
        _SumAggregation,
    )

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics._internal._view_instrument_match import _HashedAttributes, _ViewInstrumentMatch
    from opentelemetry.sdk.metrics._internal.aggregation import _Aggregation
    from opentelemetry.sdk.metrics._internal.instrument import _Instrument
    from opentelemetry.sdk.metrics._internal.measurement_consumer import SynchronousMeasurementConsumer
    from opentelemetry.sdk.metrics._internal.metric_reader_storage import MetricReaderStorage

__all__ = [
    "ApiGauge",
    "ExponentMapping",
    "Gauge",
    "LogarithmMapping",
    "Measurement",
    "MetricReaderStorage",
    "SynchronousMeasurementConsumer",
    "_Aggregation",
    "_DropAggregation",
    "_ExplicitBucketHistogramAggregation",
    "_ExponentialBucketHistogramAggregation",
    "_HashedAttributes",
    "_Instrument",
    "_LastValueAggregation",
    "_SumAggregation",
    "_ViewInstrumentMatch",
    "_hash_attributes",
]
