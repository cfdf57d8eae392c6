"""An independent decoder of Prometheus' protobuf format: the public metrics.proto, read by Google's library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2  # type: ignore[import-untyped]  # no types
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.protobuf.unknown_fields import UnknownFieldSet  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROTOBUF: Final = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""Accept header of a server with native histograms."""

COUNTER, GAUGE, SUMMARY, UNTYPED, HISTOGRAM, GAUGE_HISTOGRAM = range(6)

# From prometheus/client_model, io/prometheus/client/metrics.proto: "name number type" of each field; * is repeated.
_MESSAGES: Final = {
    "LabelPair": "name 1 string, value 2 string",
    "Gauge": "value 1 double",
    "Counter": "value 1 double, exemplar 2 Exemplar, created_timestamp 3 Timestamp",
    "Quantile": "quantile 1 double, value 2 double",
    "Summary": "sample_count 1 uint64, sample_sum 2 double, quantile 3 Quantile*, created_timestamp 4 Timestamp",
    "Untyped": "value 1 double",
    "Histogram": (
        "sample_count 1 uint64, sample_count_float 4 double, sample_sum 2 double, bucket 3 Bucket*, "
        "created_timestamp 15 Timestamp, schema 5 sint32, zero_threshold 6 double, zero_count 7 uint64, "
        "zero_count_float 8 double, negative_span 9 BucketSpan*, negative_delta 10 sint64*, negative_count 11 double*, "
        "positive_span 12 BucketSpan*, positive_delta 13 sint64*, positive_count 14 double*, exemplars 16 Exemplar*"
    ),
    "Bucket": "cumulative_count 1 uint64, cumulative_count_float 4 double, upper_bound 2 double, exemplar 3 Exemplar",
    "BucketSpan": "offset 1 sint32, length 2 uint32",
    "Exemplar": "label 1 LabelPair*, value 2 double, timestamp 3 Timestamp",
    "Metric": (
        "label 1 LabelPair*, gauge 2 Gauge, counter 3 Counter, summary 4 Summary, untyped 5 Untyped, "
        "histogram 7 Histogram, timestamp_ms 6 int64"
    ),
    "MetricFamily": "name 1 string, help 2 string, type 3 int32, metric 4 Metric*, unit 5 string",
}


def decode(body: bytes) -> Mapping[str, Any]:
    """Return the families of an answer by name; nothing in it may be unknown, twice or left over.

    Native histograms with exemplars are in families of their own.
    """
    found: dict[str, Any] = {}
    position = 0
    while position < len(body):
        length, position = _varint(body, position)
        family = _FAMILY.FromString(body[position : position + length])
        assert position + length <= len(body), "the last family is cut off"
        position += length
        assert list(_unknown(family)) == []
        assert family.name
        assert family.metric
        if family.name in found:
            [metric], first = family.metric, found[family.name]
            assert metric.histogram.exemplars
            assert (family.type, family.help, family.unit) == (first.type, first.help, first.unit)
            first.metric.append(metric)
        else:
            found[family.name] = family
    for family in found.values():
        labels = [tuple(sorted(labels_of(metric).items())) for metric in family.metric]
        assert len(set(labels)) == len(labels)
    return found


def labels_of(holder: Any) -> dict[str, str]:
    """Return the labels of a metric or an exemplar."""
    pairs = [(pair.name, pair.value) for pair in holder.label]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def series(family: Any, **labels: str) -> Any:
    """Return the one metric of a family with these labels, among others."""
    (found,) = [metric for metric in family.metric if labels.items() <= labels_of(metric).items()]
    return found


def native_buckets(histogram: Any) -> dict[int, int]:
    """Return the native buckets of positive values by index."""
    found: dict[int, int] = {}
    deltas = iter(histogram.positive_delta)
    index, count = 0, 0
    for span in histogram.positive_span:
        index += span.offset
        for _ in range(span.length):
            count += next(deltas)
            found[index] = count
            index += 1
    assert list(deltas) == []
    return found


def _varint(body: bytes, position: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = body[position]
        found |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return found, position


def _unknown(message: Message) -> Iterator[str]:
    if len(UnknownFieldSet(message)):
        yield type(message).__name__
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in [value] if isinstance(value, Message) else value:
                yield from _unknown(item)


def _family_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package="prom", syntax="proto2")
    file.dependency.append("google/protobuf/timestamp.proto")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for text in fields.split(", "):
            field_name, number, kind = text.split()
            field = message.field.add(name=field_name, number=int(number), label=3 if kind.endswith("*") else 1)
            kind = kind.removesuffix("*")
            if kind[0].isupper():
                package = "google.protobuf" if kind == "Timestamp" else "prom"
                field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = DescriptorPool()
    stamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(stamp)
    pool.Add(stamp)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("prom.MetricFamily"))


_FAMILY: Final = _family_class()
