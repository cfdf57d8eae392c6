"""Exposition of `/metrics`: content negotiation and rendering, one family at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from prometheus_client.core import Metric as Family
from prometheus_client.exposition import generate_latest as generate_text
from prometheus_client.openmetrics import exposition as openmetrics

from pellucid_exporters.prometheus.native_scrapes import EncodedFamily
from pellucid_exporters.prometheus.protobuf import encode_family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client.samples import Exemplar, Sample

EXEMPLAR_LIMIT: Final = 128
"""Maximum number of characters in the labels of an exemplar; servers reject longer ones."""

_EOF: Final = b"# EOF\n"
_ESCAPINGS: Final = (openmetrics.ALLOWUTF8, openmetrics.UNDERSCORES, openmetrics.DOTS, openmetrics.VALUES)
_PROTO: Final = "io.prometheus.client.MetricFamily"


@dataclass(frozen=True, slots=True)
class Format:
    """Exposition format.

    Attributes:
        escaping: Escaping scheme of names with characters that are not allowed.
    """

    kind: Literal["protobuf", "openmetrics", "text"]
    version: str = ""
    escaping: str | None = None

    @property
    def content_type(self) -> str:
        """Value of the `Content-Type` header."""
        escaping = f"; escaping={self.escaping}" if self.escaping else ""
        if self.kind == "protobuf":
            return f"application/vnd.google.protobuf; proto={_PROTO}; encoding=delimited{escaping}"
        name = "application/openmetrics-text" if self.kind == "openmetrics" else "text/plain"
        return f"{name}; version={self.version}; charset=utf-8{escaping}"


PLAIN: Final = Format("text", "0.0.4")


def negotiate(accept: str | None) -> Format:
    """Return the format that an `Accept` header prefers; plain text if it names no supported format.

    Of equally preferred formats, protobuf ranks first and plain text last, by how much they can express.
    """
    best, best_rank = PLAIN, (0.0, 0)
    for item in (accept or "").split(","):
        kind, parameters = _parse(item)
        candidate = _format_of(kind, parameters)
        if candidate is None:
            continue
        rank = (_quality(parameters), ("text", "openmetrics", "protobuf").index(candidate.kind))
        if rank[0] > 0 and rank > best_rank:
            best, best_rank = candidate, rank
    return best


def render(families: Iterable[Family], output_format: Format, on_bad: Callable[[str, Exception], None]) -> bytes:
    """Render families. A family that cannot be rendered, or whose name is in use, is omitted and reported.

    Args:
        families: Families in output order.
        output_format: As `negotiate` returned it.
        on_bad: Called with the name of each omitted family and the error.
    """
    blocks: list[bytes] = []
    names: set[str] = set()
    for family in families:
        if family.name in names:
            on_bad(family.name, ValueError(f"the family {family.name!r} is there twice"))
            continue
        try:
            if isinstance(family, EncodedFamily):
                blocks.append(family.encoded)
            else:
                blocks.append(_write(_fit(family, output_format), output_format))
            names.add(family.name)
        except Exception as error:  # noqa: BLE001  (whatever is wrong with one, the others are served)
            on_bad(family.name, error)
    return b"".join(blocks) + (_EOF if output_format.kind == "openmetrics" else b"")


def only(families: Iterable[Family], names: Iterable[str]) -> Iterator[Family]:
    """Yield the families reduced to samples of these names."""
    selected = set(names)
    for family in families:
        samples = [sample for sample in family.samples if sample.name in selected]
        if samples:
            yield _with(family, samples)


class _One:
    """Registry of one family, as the writers of `prometheus_client` require it."""

    def __init__(self, family: Family) -> None:
        self._family = family

    def collect(self) -> Iterable[Family]:
        return [self._family]


def _write(family: Family, output_format: Format) -> bytes:
    escaping = output_format.escaping or openmetrics.UNDERSCORES
    if output_format.kind == "protobuf":
        return encode_family(family, escaping)
    one: Any = _One(family)
    if output_format.kind == "openmetrics":
        written: bytes = openmetrics.generate_latest(one, escaping, "1.0.0")  # type: ignore[no-untyped-call]  # no types
        return written.removesuffix(_EOF)
    return generate_text(one, escaping)


def _fit(family: Family, output_format: Format) -> Family:
    """Return a family without exemplars that servers reject and without samples that the format does not support."""
    samples = [
        sample._replace(exemplar=None) if sample.exemplar and _length(sample.exemplar) > EXEMPLAR_LIMIT else sample
        for sample in family.samples
        if output_format.kind == "protobuf" or sample.native_histogram is None
    ]
    return _with(family, samples)


def _length(exemplar: Exemplar) -> int:
    return sum(len(name) + len(value) for name, value in exemplar.labels.items())


def _with(family: Family, samples: list[Sample]) -> Family:
    made = Family(family.name, family.documentation, family.type, family.unit)
    made.samples = samples
    return made


def _parse(item: str) -> tuple[str, dict[str, str]]:
    kind, *rest = (part.strip() for part in item.split(";"))
    pairs = (part.partition("=") for part in rest)
    return kind.lower(), {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}


def _quality(parameters: Mapping[str, str]) -> float:
    try:
        return float(parameters.get("q", "1"))
    except ValueError:
        return 0.0


def _format_of(kind: str, parameters: Mapping[str, str]) -> Format | None:
    escaping = parameters.get("escaping")
    escaping = escaping if escaping in _ESCAPINGS else None
    version = parameters.get("version", "")
    if kind == "application/vnd.google.protobuf":
        is_ours = (parameters.get("proto"), parameters.get("encoding")) == (_PROTO, "delimited")
        return Format("protobuf", escaping=escaping) if is_ours else None
    if kind == "application/openmetrics-text" and version in ("", "0.0.1", "1.0.0"):
        return Format("openmetrics", "1.0.0", escaping)
    if kind == "text/plain" and version == "1.0.0":
        return Format("text", version, escaping)
    return PLAIN if kind in ("text/plain", "text/*", "*/*") else None
