# SPDX-License-Identifier: Apache-2.0
"""Draws bars, stacks and lines with matplotlib, as SVG that lives inside of the page.

The page may be light or dark, so the SVG has no colours of its own: each becomes the CSS variable
of its name. Text stays text. All pictures have one width, so that their letters have one size.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from intervals import Estimate
from words import ALL_COLOURS, BAD, GRID, INK, MUTED, PAPER, PHASE_COLOURS, PHASES, Colour

WIDTH = 360.0  # points, as wide as a telephone
BAR_STEP = 21.0  # points from bar to bar
MARKERS = "osD^vPXh"  # of each rung, so that colour is not all

STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ladder",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "legend.fontsize": 9,
    "text.color": INK.light,
    "axes.labelcolor": INK.light,
    "axes.edgecolor": MUTED.light,
    "xtick.color": MUTED.light,
    "ytick.color": MUTED.light,
    "xtick.labelcolor": INK.light,
    "ytick.labelcolor": INK.light,
    "grid.color": GRID.light,
    "grid.linewidth": 0.8,
    "axes.grid.axis": "x",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Bar:
    label: str
    colour: Colour
    outlined: bool
    estimate: Estimate | None  # None: the text says why
    text: str
    floor: float | None = None
    wrong: bool = False


@dataclass(frozen=True)
class Point:
    x: float
    y: Estimate


@dataclass(frozen=True)
class Line:
    label: str
    colour: Colour
    marker: int
    outlined: bool
    points: Sequence[Point]


@dataclass(frozen=True)
class Dot:
    label: str
    colour: Colour
    outlined: bool
    x: Estimate
    y: Estimate


@dataclass(frozen=True)
class Panel:
    title: str
    dots: Sequence[Dot]


class Box(NamedTuple):
    """In points: left, bottom, right, top."""

    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Box) -> bool:
        return (self.left < other.right and other.left < self.right
                and self.bottom < other.top and other.bottom < self.top)


def distances(estimate: Estimate) -> list[list[float]]:
    """From the value down to the low end and up to the high end, as errorbar() wants them."""
    low, high = estimate.interval or (estimate.value, estimate.value)
    return [[max(0.0, estimate.value - low)], [max(0.0, high - estimate.value)]]


def figure_of(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
    return figure, figure.add_subplot()


def finish(figure: Figure, name: str, title: str, description: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return inline_svg(buffer.getvalue(), name, title, description)


def inline_svg(text: str, name: str, title: str, description: str) -> str:
    """matplotlib's file as an element of a page: own ids, the page's colours, a title."""
    text = text[text.index("<svg"):]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href=", "href=")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(url\(|href=")#', rf"\g<1>#{name}-", text)
    for colour in ALL_COLOURS:
        text = re.sub(colour.light, f"var(--{colour.name})", text, flags=re.IGNORECASE)
    box = re.search(r'viewBox="([^"]*)"', text)[1]
    head = (f'<svg viewBox="{box}" role="img" aria-labelledby="{name}-title {name}-desc">'
            f'<title id="{name}-title">{escape(title)}</title>'
            f'<desc id="{name}-desc">{escape(description)}</desc>')
    return head + text[text.index(">") + 1:].strip()


def number_bars(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)  # the first on top
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="x")


def draw_bar(axes: Axes, place: int, bar: Bar) -> None:
    if bar.estimate is None:
        axes.annotate(bar.text, (0, place), xytext=(4, 0), textcoords="offset points",
                      va="center", color=BAD.light, fontsize=9)
        return
    axes.barh(place, bar.estimate.value, height=0.62, linewidth=1.4, edgecolor=bar.colour.light,
              facecolor="none" if bar.outlined else bar.colour.light)
    end = bar.estimate.value
    if bar.estimate.interval:
        axes.errorbar(end, place, xerr=distances(bar.estimate), fmt="none", color=INK.light,
                      elinewidth=1.1, capsize=2.5)
        end = bar.estimate.interval.high
    if bar.floor is not None:
        axes.plot([bar.floor, bar.floor], [place - 0.5, place + 0.5], color=INK.light,
                  linewidth=1.8, solid_capstyle="butt")
    text = f"{bar.text} WRONG" if bar.wrong else bar.text
    axes.annotate(text, (max(end, bar.floor or 0), place), xytext=(4, 0),
                  textcoords="offset points", va="center", fontsize=9,
                  color=BAD.light if bar.wrong else INK.light)


def draw_bars(name: str, title: str, description: str, axis: str, bars: Sequence[Bar]) -> str:
    with matplotlib.rc_context(STYLE):
        figure, axes = figure_of(48 + BAR_STEP * len(bars))
        for place, bar in enumerate(bars):
            draw_bar(axes, place, bar)
        number_bars(axes, [bar.label for bar in bars])
        ends = [max(bar.floor or 0, *(bar.estimate.interval or (bar.estimate.value,)))
                for bar in bars if bar.estimate]
        axes.set_xlim(0, 1.3 * max(ends) or 1)  # room for the numbers behind the bars
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(axis)
        return finish(figure, name, title, description)


def draw_stacks(name: str, title: str, description: str, axis: str,
                stacks: Sequence[tuple[str, Sequence[float]]]) -> str:
    with matplotlib.rc_context(STYLE):
        figure, axes = figure_of(96 + BAR_STEP * len(stacks))
        starts = [0.0] * len(stacks)
        for phase, colour, index in zip(PHASES, PHASE_COLOURS, range(len(PHASES))):
            widths = [parts[index] for _, parts in stacks]
            axes.barh(range(len(stacks)), widths, left=starts, height=0.7, label=phase,
                      facecolor=colour.light, edgecolor=PAPER.light, linewidth=0.8)
            starts = [start + width for start, width in zip(starts, widths)]
        number_bars(axes, [label for label, _ in stacks])
        axes.set_xlim(0, 1.04 * max(starts) or 1)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(axis)
        figure.legend(loc="outside upper left", ncols=3)
        return finish(figure, name, title, description)


def draw_line(axes: Axes, line: Line) -> None:
    xs = [point.x for point in line.points]
    ys = [point.y.value for point in line.points]
    ends = [distances(point.y) for point in line.points]
    spread = [[end[side][0] for end in ends] for side in (0, 1)]
    axes.errorbar(xs, ys, yerr=spread, label=line.label, color=line.colour.light,
                  marker=MARKERS[line.marker], markersize=5.5, markeredgewidth=1.4,
                  markerfacecolor=PAPER.light if line.outlined else line.colour.light,
                  linestyle="--" if line.outlined else "-", linewidth=1.4, elinewidth=1,
                  capsize=2)


def draw_lines(name: str, title: str, description: str, names: tuple[str, str],
               lines: Sequence[Line], logarithmic: bool = False, ideal: bool = False) -> str:
    with matplotlib.rc_context(STYLE):
        rows = (len(lines) + ideal + 1) // 2  # of the legend
        figure, axes = figure_of(270 + 15 * rows)
        xs = sorted({point.x for line in lines for point in line.points})
        if ideal:
            axes.plot(xs, xs, color=MUTED.light, linestyle=":", linewidth=1.4, label="ideal")
        for line in lines:
            draw_line(axes, line)
        if logarithmic:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_xticks(xs, [f"{x:g}" for x in xs])
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_ylim(bottom=0)
        axes.grid(True, axis="y")
        axes.set_xlabel(names[0])
        axes.set_ylabel(names[1])
        figure.legend(loc="outside lower left", ncols=2)
        return finish(figure, name, title, description)


# --- dots with labels beside them -------------------------------------------------------

DOT = 4.0  # points from the centre of a dot to its edge
LETTER, HIGH = 5.5, 11.0  # points of a label: the width of a letter, generously, and its height
PANEL = 230.0  # points


def box_at(centre: tuple[float, float], words: str) -> Box:
    half = LETTER * len(words) / 2
    return Box(centre[0] - half, centre[1] - HIGH / 2, centre[0] + half, centre[1] + HIGH / 2)


def places_around(dot: tuple[float, float], words: str) -> Iterator[tuple[float, float]]:
    """Centres for a label, the nearest first."""
    for ring in range(1, 40):
        for turn in range(16):
            angle = math.tau * turn / 16
            far = DOT + 3.0 + 4.0 * ring
            yield (dot[0] + (far + LETTER * len(words) / 2) * math.cos(angle),
                   dot[1] + (far + HIGH / 2) * math.sin(angle))


def spread_labels(dots: Sequence[tuple[float, float]], labels: Sequence[str],
                  frame: Box) -> list[tuple[float, float]]:
    """A centre for each label, within the frame, over no dot and no other label."""
    taken = [Box(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in dots]
    centres = {}
    for place in sorted(range(len(dots)), key=lambda place: dots[place]):
        for centre in places_around(dots[place], labels[place]):
            box = box_at(centre, labels[place])
            inside = (frame.left <= box.left and box.right <= frame.right
                      and frame.bottom <= box.bottom and box.top <= frame.top)
            if inside and not any(box.meets(other) for other in taken):
                break
        taken.append(box)
        centres[place] = centre
    return [centres[place] for place in range(len(dots))]


def draw_dot(axes: Axes, dot: Dot) -> None:
    for way, estimate in (("xerr", dot.x), ("yerr", dot.y)):
        if estimate.interval:
            axes.errorbar(dot.x.value, dot.y.value, **{way: distances(estimate)}, fmt="none",
                          color=dot.colour.light, elinewidth=0.8, alpha=0.55)
    axes.plot(dot.x.value, dot.y.value, marker="o", markersize=2 * DOT - 1.4, markeredgewidth=1.4,
              markeredgecolor=dot.colour.light, linestyle="none",
              markerfacecolor=PAPER.light if dot.outlined else dot.colour.light)


def label_dots(figure: Figure, axes: Axes, dots: Sequence[Dot]) -> None:
    """Once the axes have their place: each label with a line to its dot, if it is not beside it."""
    scale = 72 / figure.dpi  # points per pixel
    places = [tuple(scale * end for end in axes.transData.transform((dot.x.value, dot.y.value)))
              for dot in dots]
    frame = Box(*(scale * end for end in axes.bbox.extents))
    centres = spread_labels(places, [dot.label for dot in dots], frame)
    for dot, place, centre in zip(dots, places, centres):
        shift = (centre[0] - place[0], centre[1] - place[1])
        far = math.hypot(max(0.0, abs(shift[0]) - LETTER * len(dot.label) / 2), shift[1]) > 16
        colour = BAD.light if dot.label.endswith("WRONG") else INK.light
        axes.annotate(dot.label, (dot.x.value, dot.y.value), xytext=shift, ha="center",
                      va="center", textcoords="offset points", fontsize=9, color=colour,
                      arrowprops={"arrowstyle": "-", "color": MUTED.light, "linewidth": 0.6,
                                  "shrinkA": 0, "shrinkB": DOT} if far else None)


def draw_dots(name: str, title: str, description: str, names: tuple[str, str],
              panels: Sequence[Panel], legend: Sequence[tuple[str, Colour]]) -> str:
    """One panel below the other, each with axes of its own; x is logarithmic."""
    with matplotlib.rc_context(STYLE):
        rows = (len(legend) + 1) // 2
        figure = Figure(figsize=(WIDTH / 72, (PANEL * len(panels) + 24 + 15 * rows) / 72),
                        layout="constrained")
        found = figure.subplots(len(panels), squeeze=False)[:, 0]
        for axes, panel in zip(found, panels):
            for dot in panel.dots:
                draw_dot(axes, dot)
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 4, 5, 7)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.margins(0.12, 0.12)
            axes.grid(True)
            axes.set_title(panel.title, fontsize=10, loc="left")
            axes.set_xlabel(names[0])
            axes.set_ylabel(names[1])
        figure.legend([Line2D([], [], marker="o", linestyle="none", color=colour.light)
                       for _, colour in legend], [words for words, _ in legend],
                      loc="outside lower left", ncols=2)
        figure.draw_without_rendering()  # gives the axes their places
        for axes, panel in zip(found, panels):
            label_dots(figure, axes, panel.dots)
        return finish(figure, name, title, description)
