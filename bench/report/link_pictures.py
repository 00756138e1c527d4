# SPDX-License-Identifier: Apache-2.0
"""Pictures of a record of bench/links/links.py: traces of a step, speed over bandwidth, and cost at
scale."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from link_model import RATES, SHARED_MEMORY, VARIANTS, Measured, length_of, measurements, sections
from words import INK, MUTED, RUNG_COLOURS, Colour, significant

sys.path.append(str(Path(__file__).resolve().parents[1]))
from scale import BATCH, DIVIDED, PLAIN, RANKS, Costs  # noqa: E402

# Narrow, so that letters of 12 points can be read where a page is 400 pixels wide.
WIDTH, LEFT, RIGHT, TOP = 540.0, 88.0, 14.0, 16.0
LETTER = 6.7  # points of a letter of 12 points, on average
ROW, BOX = 24.0, 17.0
LANES = {"forward": RUNG_COLOURS[2], "backward": RUNG_COLOURS[3], "wire": RUNG_COLOURS[4],
         "optimizer": RUNG_COLOURS[5]}
TITLES = {"plain": "With overlap: DistributedDataParallel",
          "no-overlap": "Without overlap: all-reduces after backward"}
WAIT = "wait for the buckets"
SOLID, PALE = 0.4, 0.1  # opacity
TICKS = 8  # of the axis of time, at most

Span = Sequence[Any]  # lane, begin, length, bytes


def text(x: float, y: float, words: str, colour: Colour = INK, anchor: str = "start",
         size: float = 12) -> str:
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


def size_text(size: int) -> str:
    return f"{significant(size / 1e6)} MB" if size >= 1_000_000 else f"{size / 1e3:.0f} kB"


def span_box(span: Span, opacity: float, y: float, scale: float) -> list[str]:
    name, begin, length, size = span
    x, width = LEFT + begin * scale, max(length * scale, 1.0)
    colour = f"var(--{LANES[name].name})"
    words = WAIT if opacity == PALE else size_text(size) if size else ""
    parts = [f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BOX:.1f}" '
             f'fill="{colour}" fill-opacity="{opacity:g}" stroke="{colour}"/>']
    if words and width > LETTER * len(words) + 8:
        parts.append(text(x + 5, y + 12.5, words))
    return parts


def lane_names(lanes: Sequence[tuple[str, Sequence[Span]]]) -> list[str]:
    """A lane that holds one message is a bucket. Several in a row are all-reduces."""
    names = []
    for name, spans in lanes:
        if name != "wire":
            names.append(name)
        elif len(spans) > 1:
            names.append("all-reduces")
        else:
            names.append(f"bucket {1 + sum(one.startswith('bucket') for one in names)}")
    return names


def time_axis(top: float, bottom: float, longest: float, scale: float) -> list[str]:
    step = 10 ** math.floor(math.log10(longest))
    step = next(one for one in (step / 10, step / 5, step / 2, step, 2 * step)
                if longest / one <= TICKS)
    parts = []
    for place in range(int(longest / step) + 1):
        x = LEFT + place * step * scale
        parts.append(line([(x, top), (x, bottom)], MUTED, 'stroke-opacity="0.3"'))
        parts.append(text(x, bottom + 14, f"{place * step:g} ms", MUTED, "middle"))
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
        took = (f"{TITLES.get(name, VARIANTS[name].words)}, {RATES[trace['rate']]}, "
                f"{length_of(trace['spans']):.1f} ms")
        told.append(took)
        parts.append(text(LEFT, top, took, size=13))
        top += 9
        lanes = lanes_of(trace["spans"])
        for words, (_, spans) in zip(lane_names(lanes), lanes):
            parts.append(text(LEFT - 8, top + 12.5, words, MUTED, "end"))
            for span in spans:
                for part, opacity in split(span, trace["spans"]):
                    parts += span_box(part, opacity, top, scale)
            top += ROW
        top += 22
    bottom = top - 24
    parts = time_axis(TOP + 4, bottom, longest, scale) + parts
    about = ("Lanes of one training step over time: forward, backward, each message of gradients "
             "on the wire, optimizer. " + "; ".join(told))
    return svg("links", bottom + 24, "The gradients of one step on the wire", about, parts)


# --- speed over bandwidth ---------------------------------------------------------------

CHART = 260.0  # height of a chart
BANDWIDTHS = ("100mbit", "1gbit", "10gbit")
WAYS = {"plain": RUNG_COLOURS[2], "bf16": RUNG_COLOURS[4], "accumulation": RUNG_COLOURS[3]}
WAY_NAMES = {"plain": "plain", "bf16": "bf16 compression", "accumulation": "accumulation 4"}
SPREAD = 20.0  # points from way to way
MODEL = 13.0  # width of the bar of a prediction


def speed(seconds: float) -> float:
    """Images per second."""
    return BATCH / seconds


def shown_links(record: Mapping[str, Any]) -> dict[str, list[Measured]]:
    """The measured ways of each link that was measured, in order of bandwidth."""
    names = [*(RATES[rate] for rate in BANDWIDTHS), SHARED_MEMORY]
    return {words: [one for one in measurements(words, section) if one.name in WAYS]
            for words, section in sections(record).items()
            if words in names and "not_run" not in section}


def speed_marks(one: Measured, x: float, y_of: Callable[[float], float]) -> list[str]:
    """The model as a pale bar, the measurement as a dot with its interval."""
    colour = WAYS[one.name]
    low, high = (y_of(speed(seconds)) for seconds in (one.prediction.high, one.prediction.low))
    dot = y_of(speed(one.time.value))
    interval = one.time.interval or (one.time.value, one.time.value)
    return [f'<rect x="{x - MODEL / 2:.1f}" y="{high - 1:.1f}" width="{MODEL:.1f}" '
            f'height="{low - high + 2:.1f}" fill="var(--{colour.name})" fill-opacity="0.35"/>',
            line([(x, y_of(speed(end))) for end in interval], colour, 'stroke-width="1.4"'),
            f'<circle cx="{x:.1f}" cy="{dot:.1f}" r="4" fill="var(--{colour.name})"/>']


def speed_grid(low: float, high: float, right: float, y_of: Callable[[float], float]) -> list[str]:
    parts = []
    for tick in (digit * power for power in powers(low, high) for digit in (1, 2, 5)):
        if low <= tick <= high:
            parts.append(line([(LEFT, y_of(tick)), (right, y_of(tick))], MUTED,
                              'stroke-opacity="0.3"'))
            parts.append(text(LEFT - 6, y_of(tick) + 4, f"{tick:,g}", MUTED, "end"))
    return parts


def way_legend(y: float) -> list[str]:
    parts, x = [], LEFT
    for name, colour in WAYS.items():
        parts.append(f'<circle cx="{x + 5:.1f}" cy="{y - 4:.1f}" r="4" '
                     f'fill="var(--{colour.name})"/>')
        parts.append(text(x + 14, y, WAY_NAMES[name]))
        x += 34 + LETTER * len(WAY_NAMES[name])
    return parts


def bandwidth_picture(record: Mapping[str, Any]) -> str:
    """Images per second of two ranks over the bandwidth of their link, measured and from the model,
    with one rank alone for comparison."""
    links = shown_links(record)
    alone = speed(median(record["alone"]["compute"]))
    speeds = [alone, *(speed(seconds) for found in links.values() for one in found
                       for seconds in (one.time.value, *one.prediction))]
    low, high, right = 0.8 * min(speeds), 1.25 * max(speeds), WIDTH - RIGHT
    each = (right - LEFT) / max(1, len(links))

    def y_of(value: float) -> float:
        return TOP + CHART * math.log(high / value) / math.log(high / low)

    parts = speed_grid(low, high, right, y_of)
    parts += [line([(LEFT, y_of(alone)), (right, y_of(alone))], INK, 'stroke-dasharray="2 4"'),
              text(LEFT + 4, y_of(alone) - 6, f"one rank alone: {alone:,.0f}")]
    paths: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    told, marks = [], []
    for place, (words, found) in enumerate(links.items()):
        centre = LEFT + (place + 0.5) * each
        parts.append(text(centre, TOP + CHART + 16, words, MUTED, "middle"))
        for one in found:
            x = centre + SPREAD * (list(WAYS).index(one.name) - 1) * (len(found) > 1)
            marks += speed_marks(one, x, y_of)
            if words != SHARED_MEMORY:
                paths[one.name].append((x, y_of(speed(one.time.value))))
            told.append(f"{words}, {WAY_NAMES[one.name]}: {speed(one.time.value):.0f}, model "
                        f"{speed(one.prediction.high):.0f} to {speed(one.prediction.low):.0f}")
    parts += [line(points, WAYS[name], 'stroke-opacity="0.6"')
              for name, points in paths.items() if points]
    bottom = TOP + CHART + 40
    parts += [*marks, *way_legend(bottom),
              text(LEFT, bottom + 19, "Images per second of BasicNet on two ranks."),
              text(LEFT, bottom + 36, "Dots: measured. Bars: range of the α-β model.")]
    return svg("bandwidth", bottom + 46, "Speed of two ranks over the bandwidth of their link",
               "Images per second. " + "; ".join(told), parts)


# --- cost at scale ----------------------------------------------------------------------

BOTTOM = 34.0
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
    right = 90.0
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
        y = max([y_of(curves[words, PLAIN][-1][1]), *(above + 13 for above in labels[-1:])])
        labels.append(y)
        parts.append(text(x_of(RANKS[-1]) + 6, y + 4, words, colour))
    bottom = TOP + CHART + BOTTOM
    parts += [text((LEFT + WIDTH - right) / 2, bottom, "ranks", INK, "middle"),
              text(LEFT, bottom + 20, "Seconds per epoch of BasicNet, from the α-β model.", INK),
              text(LEFT, bottom + 36, "Solid: 64 images per rank; dashed: 64 images divided.", INK)]
    about = ("Lines of the time of an epoch over the number of ranks, one per link and way. The "
             "table on the page has the numbers.")
    return svg("scale", bottom + 46, "Time of an epoch on 1 to 1,024 ranks", about, parts)
