"""Encoder of Prometheus' protobuf format, which is required for native histograms.

Written by hand after `io.prometheus.client.MetricFamily` (metrics.proto of prometheus/client_model): a family is one
message behind its length. Takes what any collector of `prometheus_client` gives out.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client.openmetrics.exposition import (
    ALLOWUTF8,
    UNDERSCORES,
    escape_label_name,
    escape_metric_name,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client.core import Metric as Family
    from prometheus_client.samples import BucketSpan, Exemplar, NativeHistogram, Sample, Timestamp

Parts: TypeAlias = "Mapping[str, list[Sample]]"
"""Samples of one series by name suffix."""

_COUNTER, _GAUGE, _SUMMARY, _UNTYPED, _HISTOGRAM, _GAUGE_HISTOGRAM = range(6)
_VARINT, _FIXED64, _BYTES = 0, 1, 2


def encode_family(family: Family, escaping: str = UNDERSCORES) -> bytes:
    """Encode a family, prefixed with its length. Samples with foreign names follow as families of their own.

    So does each native histogram with exemplars: of several in one family, Prometheus up to 3.13 reads the exemplars of
    the first, unless it reads classic buckets too, because its parser goes on where it was in the exemplars of the one
    before (`exemplarPos` in model/textparse/protobufparse.go).

    Args:
        family: Family from a collector.
        escaping: Escaping scheme of names with other characters than letters, digits and underscores.

    Raises:
        ValueError: a value is not a number or cannot be encoded.
    """
    shape = _SHAPES.get(family.type, _SHAPES["unknown"])
    kind, addition, own_label, suffixes, body = shape
    series: dict[tuple[tuple[str, str], ...], dict[str, list[Sample]]] = {}
    strays: dict[str, list[Sample]] = {}
    latest: Mapping[str, str] | None = None
    labels: tuple[tuple[str, str], ...] = ()
    for sample in family.samples:
        suffix = sample.name.removeprefix(family.name)
        if sample.name.startswith(family.name) and suffix in suffixes:
            if sample.labels is not latest:  # samples of one series may share them
                latest = sample.labels
                labels = tuple(sorted([pair for pair in latest.items() if pair[0] != own_label]))
            series.setdefault(labels, {}).setdefault(suffix, []).append(sample)
        else:
            strays.setdefault(sample.name, []).append(sample)
    together, alone = bytearray(), []
    for labels, parts in series.items():
        if content := body(parts):
            metric = _metric(labels, content, _time_of(parts), escaping)
            if _has_native_exemplars(parts):
                alone.append(metric)
            else:
                together += metric
    written = b"".join(
        _family(family, family.name + addition, kind, metrics, escaping, unit=family.unit)
        for metrics in (bytes(together), *alone)
    )
    for name, samples in strays.items():
        singles = (_metric(tuple(sorted(it.labels.items())), _untyped({"": [it]}), None, escaping) for it in samples)
        written += _family(family, name, _UNTYPED, b"".join(singles), escaping)
    return written


def encode_native(labels: Iterable[tuple[str, str]], native: NativeHistogram, created: float) -> bytes:
    """Encode one series of a native histogram; names of its labels need no escaping."""
    body = _message(7, _native(native, ()) + _timestamp(15, created))
    return _metric(labels, body, None, UNDERSCORES)


def encode_native_family(family: Family, series: Iterable[tuple[bytes, bool]]) -> bytes:
    """Encode a family of series that are encoded, each with whether it has exemplars; see `encode_family`."""
    listed = list(series)
    together = b"".join([encoded for encoded, has_exemplars in listed if not has_exemplars])
    alone = [encoded for encoded, has_exemplars in listed if has_exemplars]
    return b"".join(
        [
            _family(family, family.name, _HISTOGRAM, metrics, UNDERSCORES, unit=family.unit)
            for metrics in (together, *alone)
        ]
    )


def _family(family: Family, name: str, kind: int, metrics: bytes, escaping: str, *, unit: str = "") -> bytes:
    if not metrics:
        return b""
    head = _text(1, _escaped(escape_metric_name, name, escaping)) + _text(2, family.documentation) + _number(3, kind)
    # Servers reject the whole response for a name without its unit.
    message = head + metrics + (_text(5, unit) if unit and family.name.endswith(f"_{unit}") else b"")
    return _varint(len(message)) + message


def _metric(labels: Iterable[tuple[str, str]], body: bytes, at: float | None, escaping: str) -> bytes:
    pairs = b"".join([_label(name, value, escaping) for name, value in labels])
    return _message(4, pairs + body + (_number(6, int(at * 1000)) if at is not None else b""))


def _counter(parts: Parts) -> bytes:
    if "_total" not in parts:
        return b""
    total = parts["_total"][-1]
    return _message(3, _double(1, total.value) + _exemplar(2, total.exemplar) + _created(3, parts))


def _gauge(parts: Parts) -> bytes:
    return _message(2, _double(1, _only(parts).value))


def _untyped(parts: Parts) -> bytes:
    return _message(5, _double(1, _only(parts).value))


def _summary(parts: Parts) -> bytes:
    quantiles = b"".join(
        _message(3, _double(1, float(sample.labels.get("quantile", "nan"))) + _double(2, sample.value))
        for sample in parts.get("", ())
    )
    return _message(4, _counts(parts, "_count", "_sum") + quantiles + _created(4, parts))


def _histogram(parts: Parts) -> bytes:
    buckets = sorted(parts.get("_bucket", ()), key=_bound)
    native = _native_in(parts)
    body = _counts(parts, "_count", "_sum", otherwise=buckets) if native is None else b""
    body += _counts(parts, "_gcount", "_gsum") + b"".join(_bucket(sample) for sample in buckets)
    if native is not None:
        shown = [sample.exemplar for sample in buckets if sample.exemplar is not None]
        body += _native(native, sorted(shown, key=lambda exemplar: float(exemplar.timestamp or 0)))
    return _message(7, body + _created(15, parts)) if body else b""


def _has_native_exemplars(parts: Parts) -> bool:
    native = _native_in(parts)
    return native is not None and (
        bool(native.nh_exemplars) or any(sample.exemplar is not None for sample in parts.get("_bucket", ()))
    )


def _native_in(parts: Parts) -> NativeHistogram | None:
    found = [sample.native_histogram for sample in parts.get("", ()) if sample.native_histogram is not None]
    return found[-1] if found else None


def _bucket(sample: Sample) -> bytes:
    return _message(3, _count(1, 4, sample.value) + _double(2, _bound(sample)) + _exemplar(3, sample.exemplar))


def _native(native: NativeHistogram, exemplars: Sequence[Exemplar]) -> bytes:
    return b"".join(
        (
            _count(1, 4, native.count_value),
            _double(2, native.sum_value),
            _number(5, _zigzag(native.schema)),
            _double(6, native.zero_threshold),
            _count(7, 8, native.zero_count),
            *_spans(9, native.neg_spans or ()),
            _packed(10, native.neg_deltas or ()),
            *_spans(12, native.pos_spans or ()),
            _packed(13, native.pos_deltas or ()),
            *(_exemplar(16, exemplar) for exemplar in native.nh_exemplars or exemplars),
        )
    )


def _counts(parts: Parts, count: str, total: str, *, otherwise: Sequence[Sample] = ()) -> bytes:
    """Return count and sum; without a count, that of the last bucket is used."""
    counts = [*otherwise[-1:], *parts.get(count, ())]
    counted = _count(1, 4, counts[-1].value) if counts else b""
    return counted + (_double(2, parts[total][-1].value) if total in parts else b"")


def _spans(field: int, spans: Iterable[BucketSpan]) -> Iterable[bytes]:
    return [_span(field, span.offset, span.length) for span in spans]


@lru_cache(maxsize=4096)
def _span(field: int, offset: int, length: int) -> bytes:
    return _message(field, _number(1, _zigzag(offset)) + _number(2, length))


def _packed(field: int, deltas: Sequence[int]) -> bytes:
    if not deltas:
        return b""
    numbers = [_zigzag(delta) for delta in deltas]
    is_small = max(numbers) <= 0x7F  # noqa: PLR2004  (seven bits a byte)
    return _message(field, bytes(numbers) if is_small else b"".join(map(_varint, numbers)))


def _exemplar(field: int, exemplar: Exemplar | None) -> bytes:
    if exemplar is None:
        return b""
    labels = b"".join(_pair(1, name, value) for name, value in sorted(exemplar.labels.items()))
    at = _timestamp(3, exemplar.timestamp) if exemplar.timestamp is not None else b""
    return _message(field, labels + _double(2, exemplar.value) + at)


def _created(field: int, parts: Parts) -> bytes:
    return _timestamp(field, parts["_created"][-1].value) if "_created" in parts else b""


def _timestamp(field: int, at: float | Timestamp) -> bytes:
    nanoseconds = round(float(at) * 1e9)
    return _message(field, _number(1, nanoseconds // 10**9) + _number(2, nanoseconds % 10**9))


def _only(parts: Parts) -> Sample:
    (samples,) = parts.values()
    return samples[-1]


def _time_of(parts: Parts) -> float | None:
    timestamps = [sample.timestamp for samples in parts.values() for sample in samples if sample.timestamp is not None]
    return float(timestamps[0]) if timestamps else None


def _bound(sample: Sample) -> float:
    return float(sample.labels["le"])


def _count(field: int, float_field: int, value: float) -> bytes:
    return _number(field, int(value)) if value >= 0 and float(value).is_integer() else _double(float_field, value)


def _escaped(escape: Callable[[str, str], str], name: str, escaping: str) -> str:
    """Return a name; the functions of `prometheus_client` would put one with other letters in quotes, for texts."""
    return name if escaping == ALLOWUTF8 else escape(name, escaping)


@lru_cache(maxsize=16_384)
def _label(name: str, value: str, escaping: str) -> bytes:
    """Encode a label of a series, which is the same in each scrape."""
    return _pair(1, _escaped(escape_label_name, name, escaping), value)


def _pair(field: int, name: str, value: str) -> bytes:
    return _message(field, _text(1, name) + _text(2, value))


@lru_cache(maxsize=4096)
def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | _BYTES) + _varint(len(body)) + body


_SMALL: Final = tuple(bytes((value,)) for value in range(128))


def _varint(value: int) -> bytes:
    if 0 <= value <= 0x7F:  # noqa: PLR2004  (seven bits a byte)
        return _SMALL[value]
    remaining = value & (1 << 64) - 1  # negative numbers need all ten bytes
    encoded = bytearray()
    while remaining > 0x7F:  # noqa: PLR2004
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


_Shape: TypeAlias = "tuple[int, str, str | None, tuple[str, ...], Callable[[Parts], bytes]]"

_SHAPES: Final[Mapping[str, _Shape]] = {
    "counter": (_COUNTER, "_total", None, ("_total", "_created"), _counter),
    "gauge": (_GAUGE, "", None, ("",), _gauge),
    "info": (_GAUGE, "_info", None, ("_info",), _gauge),
    "stateset": (_GAUGE, "", None, ("",), _gauge),
    "summary": (_SUMMARY, "", "quantile", ("", "_count", "_sum", "_created"), _summary),
    "histogram": (_HISTOGRAM, "", "le", ("", "_bucket", "_count", "_sum", "_created"), _histogram),
    "gaugehistogram": (_GAUGE_HISTOGRAM, "", "le", ("", "_bucket", "_gcount", "_gsum"), _histogram),
    "unknown": (_UNTYPED, "", None, ("",), _untyped),
}
"""For each type: number, suffix of the family's name, label that is not a plain label, samples, encoder."""
