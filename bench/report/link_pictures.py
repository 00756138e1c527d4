# SPDX-License-Identifier: Apache-2.0
"""Pictures of a record of bench/links/links.py: traces of a step, and the cost at scale."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from link_model import RATES, VARIANTS, length_of
from words import INK, MUTED, RUNG_COLOURS, Colour, significant

sys.path.append(str(Path(__file__).resolve().parents[1]))
from scale import DIVIDED, PLAIN, RANKS, Costs  # noqa: E402

WIDTH, LEFT, RIGHT, TOP = 760.0, 92.0, 20.0, 14.0
ROW, BOX = 22.0, 15.0
LANES = {"forward": RUNG_COLOURS[2], "backward": RUNG_COLOURS[3], "wire": RUNG_COLOURS[4],
         "optimizer": RUNG_COLOURS[5]}
SOLID, PALE = 0.4, 0.1  # opacity
TICKS = 8  # of the axis of time, at most

Span = Sequence[Any]  # lane, begin, length, bytes


def text(x: float, y: float, words: str, colour: Colour = INK, anchor: str = "start",
         size: float = 11) -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" text-anchor="{anchor}" '
            f'fill="var(--{colour.name})">{escape(words)}</text>')


def line(points: Sequence[tuple[float, float]], colour: Colour, more: str = "") -> str:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return f'<path d="M{path}" fill="none" stroke="var(--{colour.name})" {more}/>'


def svg(name: str, height: float, title: str, about: str, parts: Sequence[str]) -> str:
    return (f'<svg viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" font-family="sans-serif" '
            f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}'
            f'</title><desc id="{name}-desc">{escape(about)}</desc>' + "".join(parts) + "</svg>")


# --- traces -----------------------------------------------------------------------------


def lanes_of(spans: Sequence[Span]) -> list[tuple[str, list[Span]]]:
    """The spans by lane, in the order of LANES. Messages that overlap get lanes of their own."""
    found: list[tuple[str, list[Span]]] = []
    for name in LANES:
        lanes: list[list[Span]] = []
        for span in sorted((span for span in spans if span[0] == name), key=lambda span: span[1]):
            free = (lane for lane in lanes if lane[-1][1] + lane[-1][2] <= span[1])
            lane = next(free, None)
            if lane is None:
                lanes.append([span])
            else:
                lane.append(span)
        found += [(name, lane) for lane in lanes]
    return found


def split(span: Span, spans: Sequence[Span]) -> list[tuple[Span, float]]:
    """A span with its opacity. Backward hands over the last bucket when it has computed all
    gradients; what is left of it then is a wait, a pale span of its own."""
    name, begin, length, size = span
    handed = [one[1] for one in spans if one[0] == "wire" and begin <= one[1] <= begin + length]
    if name != "backward" or not handed:
        return [(span, SOLID)]
    computed = max(handed) - begin
    return [((name, begin, computed, size), SOLID),
            ((name, begin + computed, length - computed, 0), PALE)]


def span_box(span: Span, opacity: float, y: float, scale: float) -> list[str]:
    name, begin, length, size = span
    x, width = LEFT + begin * scale, max(length * scale, 1.0)
    colour = f"var(--{LANES[name].name})"
    parts = [f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BOX:.1f}" '
             f'fill="{colour}" fill-opacity="{opacity:g}" stroke="{colour}"/>']
    words = f"{significant(size / 1e6, 2)} MB" if size >= 50_000 else ""
    if words and width > 6.4 * len(words):
        parts.append(text(x + 4, y + 11.5, words, size=10.5))
    return parts


def time_axis(top: float, bottom: float, longest: float, scale: float) -> list[str]:
    step = 10 ** math.floor(math.log10(longest))
    step = next(one for one in (step / 10, step / 5, step / 2, step, 2 * step)
                if longest / one <= TICKS)
    parts = []
    for place in range(int(longest / step) + 1):
        x = LEFT + place * step * scale
        parts.append(line([(x, top), (x, bottom)], MUTED, 'stroke-opacity="0.3"'))
        parts.append(text(x, bottom + 13, f"{place * step:g} ms", MUTED, "middle", 10.5))
    return parts


def trace_picture(record: Mapping[str, Any]) -> str:
    """A step with overlap above one without, on one scale of time."""
    traces = record["traces"]
    longest = max((length_of(trace["spans"]) for trace in traces.values()), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / longest
    parts: list[str] = []
    told = []
    top = TOP
    for name, trace in traces.items():
        took = f"{VARIANTS[name].words}, {RATES[trace['rate']]}: {length_of(trace['spans']):.1f} ms"
        told.append(took)
        parts.append(text(LEFT, top, took, size=12))
        top += 8
        for lane, spans in lanes_of(trace["spans"]):
            parts.append(text(LEFT - 8, top + 11.5, "on the wire" if lane == "wire" else lane,
                              MUTED, "end"))
            for span in spans:
                for part, opacity in split(span, trace["spans"]):
                    parts += span_box(part, opacity, top, scale)
            top += ROW
        top += 20
    bottom = top - 22
    parts = time_axis(TOP + 4, bottom, longest, scale) + parts
    about = ("Lanes of one training step over time: forward, backward, each message of gradients "
             "on the wire, optimizer. " + "; ".join(told))
    return svg("links", bottom + 22, "The gradients of one step on the wire", about, parts)


# --- cost at scale ----------------------------------------------------------------------

BOTTOM, CHART = 36.0, 300.0
LINK_COLOURS = (RUNG_COLOURS[6], RUNG_COLOURS[4], RUNG_COLOURS[2], RUNG_COLOURS[3])


def powers(low: float, high: float) -> list[float]:
    """The powers of ten between, and one beyond on either side."""
    return [10.0 ** power for power in range(math.floor(math.log10(low)),
                                             math.ceil(math.log10(high)) + 1)]


def grid(ticks: Sequence[float], x_of: Callable[[float], float],
         y_of: Callable[[float], float]) -> list[str]:
    parts = []
    for tick in ticks:
        y = y_of(tick)
        parts.append(line([(LEFT, y), (x_of(RANKS[-1]), y)], MUTED, 'stroke-opacity="0.3"'))
        parts.append(text(LEFT - 6, y + 4, f"{tick:g} s", MUTED, "end"))
    parts += [text(x_of(ranks), TOP + CHART + 16, f"{ranks:,}", MUTED, "middle")
              for ranks in RANKS]
    return parts


def scale_picture(record: Mapping[str, Any]) -> str:
    """Seconds per epoch over ranks, both logarithmic: a line per link and way."""
    costs = Costs(record)
    right = 120.0
    curves = {(words, way): [(ranks, epoch) for ranks in RANKS
                             if (epoch := costs.epoch(way, link, ranks)) is not None]
              for words, link in costs.links.items() for way in (PLAIN, DIVIDED)}
    values = [epoch for points in curves.values() for _, epoch in points] or [1.0, 10.0]
    ticks = powers(min(values), max(values))
    span = math.log(ticks[-1] / ticks[0]) or 1.0

    def x_of(ranks: float) -> float:
        return LEFT + (WIDTH - LEFT - right) * math.log(ranks) / math.log(RANKS[-1])

    def y_of(seconds: float) -> float:
        return TOP + CHART * math.log(ticks[-1] / seconds) / span

    parts = grid(ticks, x_of, y_of)
    labels: list[float] = []
    for place, words in enumerate(costs.links):  # the slowest first: its label is the highest
        colour = LINK_COLOURS[place % len(LINK_COLOURS)]
        for way, dashes in ((PLAIN, ""), (DIVIDED, 'stroke-dasharray="5 4"')):
            points = [(x_of(ranks), y_of(epoch)) for ranks, epoch in curves[words, way]]
            parts.append(line(points, colour, f'stroke-width="1.8" {dashes}'))
        y = max([y_of(curves[words, PLAIN][-1][1]), *(above + 12 for above in labels[-1:])])
        labels.append(y)
        parts.append(text(x_of(RANKS[-1]) + 6, y + 4, words, colour))
    bottom = TOP + CHART + BOTTOM
    parts.append(text(LEFT, bottom, "Seconds per epoch of basicnet over ranks. Solid: 64 images "
                      "per rank; dashed: 64 images divided.", INK))
    about = ("Lines of the time of an epoch over the number of ranks, one per link and way. The "
             "table on the page has the numbers.")
    return svg("scale", bottom + 10, "Time of an epoch on 1 to 1,024 ranks", about, parts)
