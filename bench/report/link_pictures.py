# SPDX-License-Identifier: Apache-2.0
"""Pictures of a record of bench/links/links.py: a step, speed over bandwidth, time over ranks."""

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from drawing import PAGE_WIDTH, Band, Box, Picture, axes_of, distances, draw_bands, show_grid_alone
from intervals import Estimate, Interval, inverse
from link_model import RATES, SHARED_MEMORY, Measured, fitted, length_of, measurements
from scale import BATCH, DIVIDED, PLAIN, RANKS, Costs
from words import INK, STAGE_COLOURS, significant

LANES = {"forward": STAGE_COLOURS[2], "backward": STAGE_COLOURS[3], "wire": STAGE_COLOURS[4],
         "optimizer": STAGE_COLOURS[5]}
# From panel to panel one thing changes: when the gradients are sent, then in how many messages.
TITLES = {"plain": "Buckets, sent during backward", "one-bucket": "One bucket, sent after backward",
          "no-overlap": "A message per parameter, sent after backward"}

Span = Sequence[Any]  # lane, begin, length, bytes


def lanes_of(spans: Sequence[Span]) -> list[tuple[str, list[Span]]]:
    """The spans by lane, in the order of LANES. Messages that overlap get lanes of their own."""
    found: list[tuple[str, list[Span]]] = []
    for name in LANES:
        lanes: list[list[Span]] = []
        for span in sorted((span for span in spans if span[0] == name), key=lambda span: span[1]):
            free = (lane for lane in lanes if lane[-1][1] + lane[-1][2] <= span[1])
            if (lane := next(free, None)) is None:
                lanes.append(lane := [])
            lane.append(span)
        found += [(name, lane) for lane in lanes]
    return found


def lane_names(lanes: Sequence[tuple[str, Sequence[Span]]]) -> list[str]:
    """A lane that holds one message is a bucket. Several in a row are all-reduces."""
    buckets = itertools.count(1)
    return [name if name != "wire" else "all-reduces" if len(spans) > 1
            else f"bucket {next(buckets)}" for name, spans in lanes]


def boxes_of(row: int, span: Span, spans: Sequence[Span]) -> list[Box]:
    """Backward hands over the last bucket when it has computed all gradients. The rest of it is a
    wait, a pale box of its own."""
    name, begin, length, size = span
    text = f"{significant(size / 1e6)} MB" if size >= 1_000_000 else f"{size / 1e3:.0f} kB"
    handed = [one[1] for one in spans if one[0] == "wire" and begin <= one[1] <= begin + length]
    if name != "backward" or not handed:
        return [Box(row, begin, length, text if size else "", LANES[name])]
    end = max(handed)
    return [Box(row, begin, end - begin, "", LANES[name]),
            Box(row, end, begin + length - end, "wait for the buckets", LANES[name], opacity=0.1)]


def trace_picture(record: Mapping[str, Any]) -> Picture:
    """The same step in several ways, on one scale of time."""
    bands = []
    for name, trace in ((name, record["traces"][name]) for name in TITLES
                        if name in record["traces"]):
        lanes = lanes_of(trace["spans"])
        title = f"{TITLES[name]}: {length_of(trace['spans']):.1f} ms at {RATES[trace['rate']]}"
        bands.append(Band(title, lane_names(lanes), [
            box for row, (_, spans) in enumerate(lanes) for span in spans
            for box in boxes_of(row, span, trace["spans"])]))
    about = ("Lanes of one training step over time: forward, backward, each message of gradients "
             "on the wire, optimizer. " + "; ".join(band.title for band in bands))
    return Picture("links", "The gradients of one step on the wire", about,
                   partial(draw_bands, PAGE_WIDTH, bands), heading="A step on a cable")


WAYS = {"plain": ("plain", STAGE_COLOURS[2]), "bf16": ("bf16 compression", STAGE_COLOURS[4]),
        "accumulation": ("accumulation 4", STAGE_COLOURS[3])}
SPREAD = 0.18  # from way to way, as a share of the place of a link


def speeds(one: Measured) -> tuple[Estimate, Interval]:
    """Images per second, measured and of the model."""
    model = one.prediction
    return inverse(one.time, BATCH), Interval(BATCH / model.high, BATCH / model.low)


def lines_below(figure: Figure, *lines: str) -> None:
    """Words below the axes, which a file needs and a page has in its caption."""
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=10)


def draw_speeds(links: Mapping[str, Sequence[Measured]], alone: float) -> Figure:
    """The model as a pale bar, the measurement as a dot with its interval, one rank as a line."""
    figure, axes = axes_of(310, PAGE_WIDTH)
    axes.axhline(alone, color=INK.light, linestyle=":", linewidth=1.2)
    axes.annotate(f"one rank alone: {alone:,.0f}", (0, alone), xytext=(6, 4),
                  xycoords=axes.get_yaxis_transform(), textcoords="offset points")
    for place, (way, (label, colour)) in enumerate(WAYS.items()):
        pale = (colour.light, 0.35)
        xs, ys = [], []
        for link, (words, found) in enumerate(links.items()):
            for measured, model in (speeds(one) for one in found if one.name == way):
                x = link + SPREAD * (place - 1) * (len(found) > 1)
                axes.bar(x, model.high - model.low, 0.12, model.low, facecolor=pale, edgecolor=pale)
                axes.errorbar(x, measured.value, yerr=distances(measured), fmt="o", markersize=7,
                              color=colour.light, linewidth=1.4,
                              label=None if words == SHARED_MEMORY or xs else label)
                if words != SHARED_MEMORY:
                    xs.append(x)
                    ys.append(measured.value)
        axes.plot(xs, ys, color=colour.light, linewidth=1, alpha=0.6)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.margins(y=0.08)
    axes.set_xticks(range(len(links)), links)
    axes.set(xlim=(-0.5, max(1, len(links)) - 0.5))
    show_grid_alone(axes, "y")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", fontsize=10)
    lines_below(figure, "Images per second of BasicNet on two ranks.",
                "Dots: measured. Bars: range of the α-β model. Shared memory:",
                "no overlap. Accumulation 4: a quarter of the updates.")
    return figure


def bandwidth_picture(record: Mapping[str, Any]) -> Picture:
    found = [one for one in measurements(record) if one.name in WAYS]
    links = {words: [one for one in found if one.link == words]
             for words in fitted(record) if words != RATES["unlimited"]}
    numbers = [f"{one.link}, {WAYS[one.name][0]}: {measured.value:.0f}, model {model.low:.0f} to "
               f"{model.high:.0f}" for found in links.values() for one in found
               for measured, model in (speeds(one),)]
    return Picture("bandwidth", "Speed of two ranks over the bandwidth of their link",
                   "Images per second. " + "; ".join(numbers),
                   partial(draw_speeds, links, BATCH / median(record["alone"]["compute"])),
                   heading="Speed over bandwidth")


LINK_COLOURS = (STAGE_COLOURS[6], STAGE_COLOURS[4], STAGE_COLOURS[2], STAGE_COLOURS[3])


def draw_scale(costs: Costs) -> Figure:
    figure, axes = axes_of(310, PAGE_WIDTH)
    ends, least = {}, 1.0
    for (words, link), colour in zip(costs.links.items(), LINK_COLOURS):
        for way, style in ((DIVIDED, "--"), (PLAIN, "-")):
            points = [(ranks, epoch) for ranks in RANKS
                      if (epoch := costs.epoch(way, link, ranks)) is not None]
            axes.plot(*zip(*points), style, color=colour.light, linewidth=1.8)
        ends[words] = (points[-1], colour)
        least = min(least, points[-1][1])
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", ylim=(10 ** math.floor(math.log10(least)), None), xlabel="ranks",
             xlim=(RANKS[0], 5 * RANKS[-1]))  # room for the names of the lines
    axes.set_xticks(RANKS[::2], [f"{ranks:,}" for ranks in RANKS[::2]])
    axes.yaxis.set_major_formatter("{x:g} s")
    axes.minorticks_off()
    show_grid_alone(axes, "y")
    lines_below(figure, "Seconds per epoch of BasicNet, from the α-β model.",
                "Dashed: 64 images divided. Solid: 64 images per rank, so N",
                "ranks make N times fewer updates.")
    figure.draw_without_rendering()  # gives the axes their place
    above = math.inf
    for words, (end, colour) in ends.items():  # the slowest first: its name is the highest
        y = axes.transData.transform(end)[1] * 72 / figure.dpi
        above = min(y, above - 13)
        axes.annotate(words, end, xytext=(6, above - y), textcoords="offset points", va="center",
                      color=colour.light)
    return figure


def scale_picture(record: Mapping[str, Any]) -> Picture:
    about = ("Lines of the time of an epoch over the number of ranks, one per link and way. The "
             "table on the page has the numbers.")
    return Picture("scale", "Time of an epoch on 1 to 1,024 ranks", about,
                   partial(draw_scale, Costs(record)), heading="Epochs over ranks")
