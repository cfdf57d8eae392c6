"""Diagrams of the documentation as SVG, drawn from the tables below; light or dark as the page that shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, Literal

Kind = Literal["box", "phase", "frame", "bar"]

STYLE: Final = """
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1c2430; text-anchor: middle }
.small { font-size: 11px; fill: #5b6472 }
.code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace }
.box, .bar { fill: #f6f7f9; stroke: #c3c9d2 }
.phase { fill: #dff3f0; stroke: #16877a }
.frame { fill: none; stroke: #8a93a1; stroke-dasharray: 4 4 }
.arrow { fill: none; stroke: #5b6472; stroke-width: 1.4; marker-end: url(#head) }
#head path { fill: #5b6472 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ee }
  .small { fill: #a3adbb }
  .box, .bar { fill: #1d222b; stroke: #4a5361 }
  .phase { fill: #10332f; stroke: #2fb5a4 }
  .frame { stroke: #6d7684 }
  .arrow { stroke: #a3adbb }
  #head path { fill: #a3adbb }
}
"""

Point = tuple[int, int]


@dataclass(frozen=True)
class Box:
    """A box with a title, and a line below it.

    Attributes:
        at: Left upper corner.
        size: Width and height.
    """

    at: Point
    title: str
    line: str = ""
    kind: Kind = "box"
    size: Point = (140, 52)


@dataclass(frozen=True)
class Arrow:
    """An arrow along points, with a label in the middle of its longest part."""

    points: Sequence[Point]
    label: str = ""


@dataclass(frozen=True)
class Diagram:
    """A drawing, and what it shows in words."""

    title: str
    size: Point
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]


RUN: Final = Diagram(
    "A run: discover, compose, chat, dispatch, and again until the model answers",
    (780, 372),
    [
        Box((10, 8), "tool hubs", "MCP, HTTP, registries"),
        Box((215, 8), "conversation", "history, instructions"),
        Box((420, 8), "model", "a vendor, or your own"),
        Box((625, 8), "tools", "functions, hubs, people"),
        Box((1, 88), "", "invoke_agent: one run", "frame", (778, 142)),
        Box((10, 108), "discover", "discover_tools", "phase"),
        Box((215, 108), "compose", "compose_request", "phase"),
        Box((420, 108), "infer", "chat", "phase"),
        Box((625, 108), "dispatch", "execute_tool", "phase"),
        Box(
            (10, 262),
            "each phase, measured once",
            "1 span with its input and output, metrics, events, 1 log line",
            "bar",
            (760, 46),
        ),
        Box((10, 332), "hooks: agent.on()", kind="box", size=(240, 34)),
        Box((270, 332), "exporters: console, file, local store, OTLP, Prometheus", kind="box", size=(500, 34)),
    ],
    [
        Arrow([(80, 60), (80, 108)]),
        Arrow([(285, 60), (285, 108)]),
        Arrow([(490, 108), (490, 60)]),
        Arrow([(695, 108), (695, 60)]),
        Arrow([(150, 134), (215, 134)]),
        Arrow([(355, 134), (420, 134)]),
        Arrow([(560, 134), (625, 134)]),
        Arrow([(695, 160), (695, 198), (80, 198), (80, 160)], "next iteration, until the model requests no more tools"),
        Arrow([(390, 230), (390, 262)]),
        Arrow([(130, 308), (130, 332)]),
        Arrow([(520, 308), (520, 332)]),
    ],
)

STACK: Final = Diagram(
    "The stack: from applications to traces, metrics, dashboards and pages",
    (900, 316),
    [
        Box((4, 104), "applications", "configure(otlp=…)", "phase"),
        Box((204, 104), "Collector", "OpenTelemetry"),
        Box((404, 8), "Jaeger", "traces"),
        Box((404, 200), "Prometheus", "metrics, rules"),
        Box((580, 104), "Grafana", "dashboards"),
        Box((580, 260), "relay", "adds the trace"),
        Box((756, 200), "Alertmanager", "groups, inhibits"),
        Box((756, 104), "your receivers", "pages, tickets"),
    ],
    [
        Arrow([(144, 130), (204, 130)], "OTLP"),
        Arrow([(274, 104), (274, 34), (404, 34)], "traces"),
        Arrow([(274, 156), (274, 226), (404, 226)], "metrics"),
        Arrow([(650, 104), (650, 34), (544, 34)], "reads"),
        Arrow([(580, 130), (474, 130), (474, 200)], "reads"),
        Arrow([(544, 226), (756, 226)], "alerts"),
        Arrow([(474, 252), (474, 286), (580, 286)], "alerts"),
        Arrow([(720, 286), (826, 286), (826, 252)], "with trace"),
        Arrow([(826, 200), (826, 156)]),
    ],
)

DIAGRAMS: Final = {"run.svg": RUN, "stack.svg": STACK}


def draw(diagram: Diagram) -> str:
    """Return a diagram as an SVG document, which loads nothing."""
    width, height = diagram.size
    shapes = "\n".join([*map(_arrow, diagram.arrows), *map(_box, diagram.boxes)])
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{escape(diagram.title)}</title>
<style>{STYLE}</style>
<defs>
<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
<path d="M0 0 8 4 0 8z"/>
</marker>
</defs>
{shapes}
</svg>
"""


def _box(box: Box) -> str:
    (x, y), (width, height) = box.at, box.size
    drawn = [f'<rect class="{box.kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>']
    middle = x + width // 2
    if box.title:
        drawn.append(f'<text x="{middle}" y="{y + height // 2 + (-2 if box.line else 5)}">{escape(box.title)}</text>')
    if box.line:
        code = " code" if box.kind in ("phase", "frame") else ""
        below = height - 8 if box.kind == "frame" else height // 2 + 15
        drawn.append(f'<text class="small{code}" x="{middle}" y="{y + below}">{escape(box.line)}</text>')
    return "\n".join(drawn)


def _arrow(arrow: Arrow) -> str:
    drawn = [f'<polyline class="arrow" points="{" ".join(f"{x},{y}" for x, y in arrow.points)}"/>']
    if arrow.label:
        level = [(a, b) for a, b in zip(arrow.points, arrow.points[1:], strict=False) if a[1] == b[1]]
        (left, y), (right, _) = max(level, key=lambda part: abs(part[0][0] - part[1][0]))
        drawn.append(f'<text class="small" x="{(left + right) // 2}" y="{y - 6}">{escape(arrow.label)}</text>')
    return "\n".join(drawn)
