# SPDX-License-Identifier: Apache-2.0
"""Pictures of records of bench/measure: gradients over the range of float16, and accuracy over
updates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drawing import PAGE_WIDTH, Picture, figure_of
from words import BAD, INK, MUTED, STAGE_COLOURS, Colour, percent, significant

# --- gradients --------------------------------------------------------------------------

SCALE_POWER = 16  # a scale of 65,536
LOWEST, HIGHEST = -44, 20  # powers of two that are shown
TICKS = range(-40, HIGHEST, 8)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
GROUPS = {"activations": STAGE_COLOURS[2], "parameters": STAGE_COLOURS[4]}
GROUP_TEXTS = {"activations": "activations: outputs of convolutions and linear layers",
               "parameters": "parameters"}
FILLS = {"activations": {"fill": True, "facecolor": (GROUPS["activations"].light, 0.4),
                         "edgecolor": GROUPS["activations"].light},
         "parameters": {"fill": False, "edgecolor": GROUPS["parameters"].light}}
TITLES = {0: "Gradients as they are, in float16",
          SCALE_POWER: f"Gradients × {2 ** SCALE_POWER:,}, in float16"}


class Region(NamedTuple):
    """Magnitudes that float16 treats alike: from 2^begin up to 2^end."""

    name: str
    begin: int
    end: int
    tint: Colour | None


REGIONS = (  # half of the smallest number, 2^-24, and all below are rounded to 0
    Region("rounds to 0", LOWEST, -25, BAD),
    Region("subnormal", -25, -14, STAGE_COLOURS[1]),
    Region("normal", -14, 16, None),
    Region("inf", 16, HIGHEST, BAD),
)

Shares = Mapping[int, float]  # by power of two


def shares(counts: Mapping[str, Any], power: int = 0) -> Shares:
    """The share of each power of two in the gradients that are not 0, scaled by 2^power."""
    total = sum(counts["bins"].values())
    return {int(exponent) + power: count / total for exponent, count in counts["bins"].items()}


def region_share(found: Shares, region: Region) -> float:
    """The lowest region has no lower end, the highest no upper one."""
    return sum(share for exponent, share in found.items()
               if (exponent >= region.begin or region.begin == LOWEST)
               and (exponent < region.end or region.end == HIGHEST))


def share_text(share: float) -> str:
    """In percent, with two digits that count."""
    return f"{significant(100 * share, 2)} %" if share == 0 or share >= 1e-5 else "< 0.001 %"


def power_text(exponent: int) -> str:
    return "1" if exponent == 0 else "2" + str(exponent).translate(SUPERSCRIPTS)


def draw_regions(axes: Axes, groups: Mapping[str, Shares]) -> None:
    """The regions and their shares in numbers, one line per group, above the histograms."""
    across = axes.get_xaxis_transform()
    for region in REGIONS:
        if region.tint:
            axes.axvspan(region.begin, region.end, facecolor=(region.tint.light, 0.12))
        middle = (region.begin + region.end) / 2
        axes.text(middle, 0.92, region.name, transform=across, ha="center")
        for line, (name, found) in enumerate(groups.items()):
            share = region_share(found, region)
            if share or region.end != HIGHEST:
                axes.text(middle, 0.82 - 0.08 * line, share_text(share), transform=across,
                          ha="center", color=GROUPS[name].light)
    for line, name in enumerate(groups):
        axes.text(-0.012, 0.82 - 0.08 * line, name, transform=axes.transAxes, ha="right",
                  color=GROUPS[name].light)


def draw_histograms(histograms: Mapping[int, Mapping[str, Shares]]) -> Figure:
    figure = figure_of(490, PAGE_WIDTH)
    for axes, (power, groups) in zip(figure.subplots(2), histograms.items()):
        draw_regions(axes, groups)
        for name, found in groups.items():
            axes.stairs([found.get(power, 0.0) for power in range(LOWEST, HIGHEST)],
                        range(LOWEST, HIGHEST + 1), linewidth=1.4, **FILLS[name])
        axes.set(title=TITLES[power], xlim=(LOWEST, HIGHEST),
                 ylim=(0, 1.55 * max(max(found.values()) for found in groups.values())))
        axes.set_xticks(TICKS, map(power_text, TICKS))
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    handles = [Patch(label=GROUP_TEXTS[name], **FILLS[name]) for name in GROUPS]
    note = "Shares of the gradients that are not 0, in columns of [2ⁿ, 2ⁿ⁺¹)."
    figure.legend(handles=[*handles, Line2D([], [], linestyle="none", label=note)],
                  loc="outside lower left", fontsize=10)
    return figure


def shares_text(title: str, groups: Mapping[str, Shares]) -> str:
    return f"{title}: " + "; ".join(
        f"{name} " + ", ".join(f"{region.name} {share_text(region_share(found, region))}"
                               for region in REGIONS) for name, found in groups.items())


def gradients_picture(record: Mapping[str, Any]) -> Picture:
    """Two histograms on one axis: gradients as they are, and multiplied by the scale."""
    histograms = {power: {name: shares(record["counts"][name], power) for name in GROUPS}
                  for power in TITLES}
    numbers = [shares_text(TITLES[power], groups) for power, groups in histograms.items()]
    return Picture("gradients", "Magnitudes of gradients over the range of float16",
                   ". ".join(numbers), partial(draw_histograms, histograms))


# --- accuracy over updates and over images ----------------------------------------------

ACCURACIES = range(70, 96, 5)  # percent; points below are not shown
WAYS = {"global": ("32 images per update, 16 per rank", STAGE_COLOURS[2], "-"),
        "per-device": ("32 images per rank", STAGE_COLOURS[4], "-"),
        "per-device, linear": ("32 images per rank, learning rate × 2", STAGE_COLOURS[3], "--")}
AXES = (("updates", range(0, 6000, 2000)), ("images", range(0, 180_001, 90_000)))


def draw_ways(ways: Mapping[str, Any], labels: Mapping[str, str]) -> Figure:
    """The same curves twice, each with a dot at its end."""
    figure = figure_of(310, PAGE_WIDTH)
    for column, (axes, (title, ticks)) in enumerate(zip(figure.subplots(1, 2, sharey=True), AXES)):
        for way, (_, colour, style) in WAYS.items():
            shown = [point for point in ways[way]["points"] if point[2] >= ACCURACIES[0]]
            axes.plot([point[column] for point in shown], [point[2] for point in shown], style,
                      color=colour.light, linewidth=1.8, marker="o", markersize=7,
                      markevery=[-1] if shown else [], label="" if column else labels[way])
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_yticks(ACCURACIES, [f"{accuracy} %" for accuracy in ACCURACIES])
        axes.set(xlabel=title, xlim=(0, None), ylim=(ACCURACIES[0], ACCURACIES[-1]))
        axes.grid(True, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(length=0, labelcolor=MUTED.light)
    figure.legend(loc="outside lower left", fontsize=10, labelcolor=INK.light)
    return figure


def updates_picture(record: Mapping[str, Any]) -> Picture:
    """What counts is the number of updates and their length."""
    labels = {}
    for name, (words, _, _) in WAYS.items():
        updates, _, accuracy = record["ways"][name]["points"][-1]
        labels[name] = f"{words}: {updates:,} updates, {percent(accuracy)} %"
    return Picture("updates", "Test accuracy of ConvNet on two ranks, over updates and images",
                   "; ".join(labels.values()), partial(draw_ways, record["ways"], labels))
