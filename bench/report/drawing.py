# SPDX-License-Identifier: Apache-2.0
"""Pictures drawn by matplotlib: bars, stacks, lines, dots, and boxes over time.

Page and reader may choose light or dark: in the SVG each colour becomes the CSS variable of its
name. Text stays text.
"""

import io
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox

from intervals import Estimate
from words import ALL_COLOURS, BAD, GRID, INK, MUTED, PAPER, PHASE_COLOURS, PHASES, Colour, theme

WIDTH = 360.0  # points, as wide as a telephone
PAGE_WIDTH = 440.0  # letters of 10 points can be read where a page is 400 pixels wide
README_WIDTH = 760.0
BAR_STEP = 21.0  # points from bar to bar
MARKERS = "osD^vPXh"  # of each stage, so that colour is not all
FILE_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<!-- SPDX-License-Identifier: Apache-2.0 -->\n'

matplotlib.rc_file(Path(__file__).with_name("matplotlibrc"))
matplotlib.rcParams.update({
    "axes.edgecolor": MUTED.light, "grid.color": GRID.light, **dict.fromkeys(
        ("xtick.color", "ytick.color"), MUTED.light), **dict.fromkeys(
        ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK.light)})


@dataclass
class Picture:
    name: str  # of its file, and of its place on the page
    title: str
    description: str  # its numbers in words, for readers who do not see it
    draw: Callable[[], Figure]  # takes a tenth of a second or more
    caption: str = ""
    heading: str = ""  # on the page, if it is not the title

    @cached_property
    def svg(self) -> str:
        """An element of a page; ids are its own, as its name salts them."""
        with matplotlib.rc_context({"svg.hashsalt": self.name}), io.StringIO() as buffer:
            self.draw().savefig(buffer, format="svg", transparent=True, metadata=dict.fromkeys(
                ("Creator", "Date", "Format", "Type")))
            text = buffer.getvalue()
        text = re.sub(r' id="[\w.]+_\d+"', "", text)  # of groups, which nothing refers to
        for colour in ALL_COLOURS:
            text = re.sub(colour.light, f"var(--{colour.name})", text, flags=re.IGNORECASE)
        head, body = text[text.index("<svg"):].split(">", 1)
        return (f'{head} role="img" aria-labelledby="{self.name}-title {self.name}-desc">'
                f'<title id="{self.name}-title">{escape(self.title)}</title>'
                f'<desc id="{self.name}-desc">{escape(self.description)}</desc>{body.rstrip()}')

    @property
    def file(self) -> str:
        """A file of its own, with the colours of the page."""
        return FILE_HEAD + self.svg.replace("</desc>", f"</desc><style>{theme()}</style>", 1) + "\n"


def figure_of(height: float, width: float = WIDTH) -> Figure:
    """In points."""
    return Figure(figsize=(width / 72, height / 72))


def axes_of(height: float, width: float = WIDTH) -> tuple[Figure, Axes]:
    figure = figure_of(height, width)
    return figure, figure.add_subplot()


def show_grid_alone(axes: Axes, axis: str) -> None:
    axes.grid(True, axis=axis)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=MUTED.light)


def distances(estimate: Estimate) -> list[list[float]]:
    """From the value down to the low end and up to the high end, as errorbar() expects them."""
    low, high = estimate.interval or (estimate.value, estimate.value)
    return [[max(0.0, estimate.value - low)], [max(0.0, high - estimate.value)]]


class Bar(NamedTuple):
    label: str
    colour: Colour
    outlined: bool
    estimate: Estimate | None  # None: the text is the reason
    text: str
    floor: float | None = None
    wrong: bool = False

    @property
    def end(self) -> float:
        """Of bar, whisker and floor."""
        if self.estimate is None:
            return 0.0
        return max(self.floor or 0.0, *(self.estimate.interval or (self.estimate.value,)))


def number_bars(axes: Axes, labels: Sequence[str], end: float, name: str) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set(xlim=(0, end or 1), ylim=(len(labels) - 0.4, -0.6), xlabel=name)  # the first on top
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(True, axis="x")
    axes.xaxis.set_major_locator(MaxNLocator(5))


def draw_bar(axes: Axes, place: float, bar: Bar, height: float = 0.62, letters: float = 9) -> None:
    if bar.estimate is not None:
        axes.barh(place, bar.estimate.value, height=height, linewidth=1.4,
                  edgecolor=bar.colour.light,
                  facecolor="none" if bar.outlined else bar.colour.light)
        if bar.estimate.interval:
            axes.errorbar(bar.estimate.value, place, xerr=distances(bar.estimate), fmt="none",
                          color=INK.light, elinewidth=1.1, capsize=2.5)
        if bar.floor is not None:
            axes.plot([bar.floor, bar.floor], [place - 0.5, place + 0.5], color=INK.light,
                      linewidth=1.8, solid_capstyle="butt")
    bad = bar.wrong or bar.estimate is None
    axes.annotate(bar.text, (bar.end, place), xytext=(5, 0), textcoords="offset points",
                  va="center", fontsize=letters, color=BAD.light if bad else INK.light)


def draw_bars(axis: str, bars: Sequence[Bar]) -> Figure:
    figure, axes = axes_of(48 + BAR_STEP * len(bars))
    for place, bar in enumerate(bars):
        draw_bar(axes, place, bar._replace(text=f"{bar.text} WRONG") if bar.wrong else bar)
    # The numbers behind the bars need room.
    number_bars(axes, [bar.label for bar in bars], 1.3 * max(bar.end for bar in bars), axis)
    return figure


def draw_stacks(axis: str, stacks: Sequence[tuple[str, Sequence[float]]]) -> Figure:
    figure, axes = axes_of(96 + BAR_STEP * len(stacks))
    starts = [0.0] * len(stacks)
    for index, (phase, colour) in enumerate(zip(PHASES, PHASE_COLOURS)):
        widths = [parts[index] for _, parts in stacks]
        axes.barh(range(len(stacks)), widths, left=starts, height=0.7, label=phase,
                  facecolor=colour.light, edgecolor=PAPER.light, linewidth=0.8)
        starts = [start + width for start, width in zip(starts, widths)]
    number_bars(axes, [label for label, _ in stacks], 1.04 * max(starts), axis)
    figure.legend(loc="outside upper left", ncols=3)
    return figure


class Line(NamedTuple):
    label: str
    colour: Colour
    marker: int
    outlined: bool
    points: Sequence[tuple[float, Estimate]]


def logarithmic_axis(axes: Axes) -> None:
    """The ticks are so far apart that their labels do not touch."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 5 * low else MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def draw_line(axes: Axes, line: Line) -> None:
    xs, ys = zip(*line.points)
    axes.errorbar(xs, [y.value for y in ys], yerr=numpy.hstack([*map(distances, ys)]),
                  label=line.label, color=line.colour.light, marker=MARKERS[line.marker],
                  markersize=5.5, markeredgewidth=1.4, elinewidth=1, capsize=2, linewidth=1.4,
                  linestyle="--" if line.outlined else "-",
                  markerfacecolor=PAPER.light if line.outlined else line.colour.light)


def draw_lines(names: tuple[str, str], lines: Sequence[Line], logarithmic: bool = False,
               ideal: bool = False) -> Figure:
    figure, axes = axes_of(270 + 15 * ((len(lines) + ideal + 1) // 2))
    xs = sorted({x for line in lines for x, _ in line.points})
    if ideal:
        axes.plot(xs, xs, color=MUTED.light, linestyle=":", linewidth=1.4, label="ideal")
    for line in lines:
        draw_line(axes, line)
    if logarithmic:
        logarithmic_axis(axes)
    else:
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_ylim(bottom=0)
    axes.grid(True, axis="y")
    axes.set(xlabel=names[0], ylabel=names[1])
    figure.legend(loc="outside lower left", ncols=2)
    return figure


DOT = 4.0  # points from the centre of a dot to its edge
LETTER, HIGH = 5.5, 11.0  # points of a label: the width of a letter, generously, and its height
PANEL = 230.0  # points


class Dot(NamedTuple):
    label: str
    colour: Colour
    outlined: bool
    x: Estimate
    y: Estimate


def box_around(x: float, y: float, width: float, height: float) -> Bbox:
    return Bbox.from_bounds(x - width / 2, y - height / 2, width, height)


def label_shifts(dots: Sequence[tuple[float, float]], labels: Sequence[str],
                 frame: Bbox) -> list[tuple[float, float]]:
    """From each dot to its label: within the frame, over no dot and no other label."""
    taken = [box_around(x, y, 2 * DOT, 2 * DOT) for x, y in dots]
    shifts = {}
    for place in sorted(range(len(dots)), key=lambda place: tuple(dots[place])):
        (x, y), width = dots[place], LETTER * len(labels[place])
        for ring, turn in itertools.product(range(1, 40), range(16)):
            far, angle = DOT + 3.0 + 4.0 * ring, math.tau * turn / 16
            shift = ((far + width / 2) * math.cos(angle), (far + HIGH / 2) * math.sin(angle))
            box = box_around(x + shift[0], y + shift[1], width, HIGH)
            if (frame.contains(*box.min) and frame.contains(*box.max)
                    and not box.count_overlaps(taken)):
                break
        taken.append(box)
        shifts[place] = shift
    return [shifts[place] for place in range(len(dots))]


def draw_dot(axes: Axes, dot: Dot) -> None:
    for way, estimate in (("xerr", dot.x), ("yerr", dot.y)):
        if estimate.interval:
            axes.errorbar(dot.x.value, dot.y.value, **{way: distances(estimate)}, fmt="none",
                          color=dot.colour.light, elinewidth=0.8, alpha=0.55)
    axes.plot(dot.x.value, dot.y.value, marker="o", markersize=2 * DOT - 1.4, markeredgewidth=1.4,
              markeredgecolor=dot.colour.light, linestyle="none",
              markerfacecolor=PAPER.light if dot.outlined else dot.colour.light)


def label_dots(figure: Figure, axes: Axes, dots: Sequence[Dot]) -> None:
    """Once the axes have their place. A label that is not beside its dot has a line to it."""
    scale = 72 / figure.dpi  # points per pixel
    places = [tuple(scale * axes.transData.transform((dot.x.value, dot.y.value))) for dot in dots]
    frame = Bbox.from_extents(*(scale * axes.bbox.extents))
    for dot, shift in zip(dots, label_shifts(places, [dot.label for dot in dots], frame)):
        far = math.hypot(max(0.0, abs(shift[0]) - LETTER * len(dot.label) / 2), shift[1]) > 16
        arrow = {"arrowstyle": "-", "color": MUTED.light, "linewidth": 0.6, "shrinkA": 0,
                 "shrinkB": DOT}
        axes.annotate(dot.label, (dot.x.value, dot.y.value), xytext=shift, ha="center",
                      va="center", textcoords="offset points", fontsize=9,
                      color=BAD.light if dot.label.endswith("WRONG") else INK.light,
                      arrowprops=arrow if far else None)


def draw_dots(names: tuple[str, str], panels: dict[str, Sequence[Dot]],
              legend: Sequence[tuple[str, Colour]]) -> Figure:
    """One panel below the other, each with axes of its own; x is logarithmic."""
    figure = figure_of(PANEL * len(panels) + 24 + 15 * ((len(legend) + 1) // 2))
    found = figure.subplots(len(panels), squeeze=False)[:, 0]
    for axes, (title, dots) in zip(found, panels.items()):
        for dot in dots:
            draw_dot(axes, dot)
        axes.margins(0.12, 0.12)
        logarithmic_axis(axes)
        axes.grid(True, axis="both")
        axes.set(title=title, xlabel=names[0], ylabel=names[1])
    figure.legend([Line2D([], [], marker="o", linestyle="none", color=colour.light)
                   for _, colour in legend], [words for words, _ in legend],
                  loc="outside lower left", ncols=2)
    figure.draw_without_rendering()  # gives the axes their places
    for axes, dots in zip(found, panels.values()):
        label_dots(figure, axes, dots)
    return figure


ROW = 20.0  # points
OPACITY = 0.4


class Box(NamedTuple):
    row: int
    begin: float  # milliseconds
    length: float  # milliseconds
    text: str
    colour: Colour
    opacity: float = OPACITY


class Band(NamedTuple):
    title: str
    rows: Sequence[str]
    boxes: Sequence[Box]


def draw_bands(width: float, bands: Sequence[Band], legend: Sequence[tuple[str, Colour]] = (),
               shorten: bool = False) -> Figure:
    """One band below the other, on one scale of time."""
    rows = [len(band.rows) for band in bands] or [1]
    figure = figure_of(ROW * sum(rows) + 24 * len(rows) + 22 + 20 * bool(legend), width)
    found = figure.subplots(len(rows), sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    longest = max((box.begin + box.length for band in bands for box in band.boxes), default=1.0)
    names = max((len(row) for band in bands for row in band.rows), default=0)
    letters = (width - 24 - 6 * names) / 6.6  # of the whole axis
    for axes, band in zip(found, bands):
        axes.set_title(band.title, fontsize=11)
        axes.set_yticks(range(len(band.rows)), band.rows, color=MUTED.light)
        axes.set_ylim(len(band.rows) - 0.5, -0.5)
        show_grid_alone(axes, "x")
        for box in band.boxes:
            axes.barh(box.row, max(box.length, longest / width), left=box.begin, height=0.84,
                      facecolor=(box.colour.light, box.opacity), edgecolor=box.colour.light,
                      linewidth=0.9)
            room = letters * box.length / longest - 1
            short = f"{box.text[:int(room) - 1]}…" if shorten and room >= 4 else ""
            axes.text(box.begin + 3 * longest / width, box.row,
                      short if len(box.text) > max(0, room) else box.text, va="center")
    found[-1].set_xlim(0, 1.02 * longest)
    found[-1].xaxis.set_major_formatter("{x:g} ms")
    if legend:
        figure.legend([Patch(facecolor=(colour.light, OPACITY), edgecolor=colour.light)
                       for _, colour in legend], [words for words, _ in legend],
                      loc="outside lower left", ncols=len(legend))
    return figure
