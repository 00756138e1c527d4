# SPDX-License-Identifier: Apache-2.0
"""Pictures of the lessons: gradients over the range of float16, and accuracy over updates.

From records of gradients.py and updates.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from link_pictures import LETTER, WIDTH, line, svg, text
from words import BAD, INK, MUTED, RUNG_COLOURS, Colour, percent, significant

# --- gradients --------------------------------------------------------------------------

SCALE_POWER = 16  # a scale of 65,536
LOWEST, HIGHEST = -44, 20  # powers of two that are shown
LEFT, RIGHT = 84.0, 14.0
BARS = 130.0  # height of the tallest bar
TICKS = range(-40, HIGHEST, 8)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Region(NamedTuple):
    """Magnitudes that float16 treats alike: from 2^begin up to 2^end."""

    name: str
    begin: int
    end: int
    tint: Colour | None


REGIONS = (  # half of the smallest number, 2^-24, and all below are rounded to 0
    Region("rounds to 0", LOWEST, -25, BAD),
    Region("subnormal", -25, -14, RUNG_COLOURS[1]),
    Region("normal", -14, 16, None),
    Region("inf", 16, HIGHEST, BAD),
)
GROUPS = {"activations": RUNG_COLOURS[2], "parameters": RUNG_COLOURS[4]}
GROUP_TEXTS = {"activations": "activations: outputs of convolutions and linear layers",
               "parameters": "parameters"}


def shares(counts: Mapping[str, Any], power: int = 0) -> dict[int, float]:
    """The share of each power of two in the gradients that are not 0, scaled by 2^power."""
    total = sum(counts["bins"].values())
    return {int(exponent) + power: count / total for exponent, count in counts["bins"].items()}


def region_share(found: Mapping[int, float], region: Region) -> float:
    """The lowest region has no lower end, the highest no upper one."""
    return sum(share for exponent, share in found.items()
               if (exponent >= region.begin or region.begin == LOWEST)
               and (exponent < region.end or region.end == HIGHEST))


def share_text(share: float) -> str:
    """In percent, with two digits that count."""
    return f"{significant(100 * share, 2)} %" if share == 0 or share >= 1e-5 else "< 0.001 %"


def power_text(exponent: int) -> str:
    return "1" if exponent == 0 else "2" + str(exponent).translate(SUPERSCRIPTS)


def x_of(exponent: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (exponent - LOWEST) / (HIGHEST - LOWEST)


def outline(found: Mapping[int, float], bottom: float, tallest: float) -> str:
    """The upper edge of a histogram, bin by bin."""
    path = f"M{x_of(LOWEST):.1f} {bottom:.1f}"
    for exponent in range(LOWEST, HIGHEST):
        height = BARS * found.get(exponent, 0.0) / tallest
        path += f"V{bottom - height:.1f}H{x_of(exponent + 1):.1f}"
    return f"{path}V{bottom:.1f}"


def region_parts(region: Region, top: float, bottom: float) -> list[str]:
    left, right = x_of(region.begin), x_of(region.end)
    parts = []
    if region.tint:
        parts.append(f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
                     f'height="{bottom - top:.1f}" fill="var(--{region.tint.name})" '
                     'fill-opacity="0.12"/>')
    return [*parts, text((left + right) / 2, top + 14, region.name, INK, "middle")]


def histogram(title: str, groups: Mapping[str, Mapping[int, float]], top: float) -> list[str]:
    """The shares of each region in numbers, one line per group, above the shares of each bin."""
    bottom = top + 74 + BARS
    tallest = max(max(found.values()) for found in groups.values())
    parts = [text(LEFT, top, title, size=13)]
    for region in REGIONS:
        parts += region_parts(region, top + 8, bottom)
        middle = (x_of(region.begin) + x_of(region.end)) / 2
        for place, (name, found) in enumerate(groups.items()):
            share = region_share(found, region)
            if share or region.end != HIGHEST:
                parts.append(text(middle, top + 40 + 16 * place, share_text(share), GROUPS[name],
                                  "middle"))
    for place, name in enumerate(groups):
        parts.append(text(LEFT - 6, top + 40 + 16 * place, name, GROUPS[name], "end"))
    for name, found in groups.items():
        colour = f"var(--{GROUPS[name].name})"
        fill = colour if name == "activations" else "none"
        parts.append(f'<path d="{outline(found, bottom, tallest)}" fill="{fill}" '
                     f'fill-opacity="0.4" stroke="{colour}" stroke-width="1.4"/>')
    return parts


def power_axis(y: float) -> list[str]:
    parts = [line([(x_of(LOWEST), y), (x_of(HIGHEST), y)], MUTED)]
    for tick in TICKS:
        parts.append(line([(x_of(tick), y), (x_of(tick), y + 4)], MUTED))
        parts.append(text(x_of(tick), y + 18, power_text(tick), MUTED, "middle"))
    return parts


def group_legend(y: float) -> list[str]:
    parts = []
    for place, (name, colour) in enumerate(GROUPS.items()):
        top = y + 17 * place
        fill = f"var(--{colour.name})" if name == "activations" else "none"
        parts.append(f'<rect x="{LEFT:.1f}" y="{top - 10:.1f}" width="12" height="11" '
                     f'fill="{fill}" fill-opacity="0.4" stroke="var(--{colour.name})"/>')
        parts.append(text(LEFT + 18, top, GROUP_TEXTS[name]))
    return [*parts, text(LEFT, y + 17 * len(GROUPS),
                         "Shares of the gradients that are not 0, in columns of [2ⁿ, 2ⁿ⁺¹).")]


def told_shares(title: str, groups: Mapping[str, Mapping[int, float]]) -> str:
    return f"{title}: " + "; ".join(
        f"{name} " + ", ".join(f"{region.name} {share_text(region_share(found, region))}"
                               for region in REGIONS) for name, found in groups.items())


def gradients_picture(record: Mapping[str, Any]) -> str:
    """Two histograms on one axis: gradients as they are, and multiplied by the scale."""
    parts, told, top = [], [], 16.0
    for power, title in ((0, "Gradients as they are, in float16"),
                         (SCALE_POWER, f"Gradients × {2 ** SCALE_POWER:,}, in float16")):
        groups = {name: shares(record["counts"][name], power) for name in GROUPS}
        parts += histogram(title, groups, top)
        parts += power_axis(top + 74 + BARS)
        told.append(told_shares(title, groups))
        top += 74 + BARS + 46
    parts += group_legend(top)
    return svg("gradients", top + 44, "Magnitudes of gradients over the range of float16",
               ". ".join(told), parts)


# --- accuracy over updates and over images ----------------------------------------------

CHART, CHART_TOP, CHART_LEFT, GAP = 230.0, 12.0, 48.0, 30.0
ACCURACIES = range(70, 96, 5)  # percent; points below are not shown
WAYS = {"global": ("32 images per update, 16 per rank", RUNG_COLOURS[2], ""),
        "per-device": ("32 images per rank", RUNG_COLOURS[4], ""),
        "per-device, linear": ("32 images per rank, learning rate × 2", RUNG_COLOURS[3],
                               'stroke-dasharray="6 4"')}
AXES = (("updates", range(0, 6000, 2000)), ("images", range(0, 180_001, 90_000)))


def curve(points: Sequence[Sequence[float]], axis: int, colour: Colour, dashes: str,
          place_of: Callable[[float, float], tuple[float, float]]) -> list[str]:
    """Ends in a dot."""
    shown = [place_of(point[axis], point[2]) for point in points if point[2] >= ACCURACIES[0]]
    if not shown:
        return []
    x, y = shown[-1]
    return [line(shown, colour, f'stroke-width="1.8" {dashes}'),
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="var(--{colour.name})"/>']


def panel(record: Mapping[str, Any], axis: int, left: float, width: float) -> list[str]:
    """Accuracy over one of AXES, with a line per way."""
    name, ticks = AXES[axis]
    bottom = CHART_TOP + CHART
    longest = max(way["points"][-1][axis] for way in record["ways"].values())

    def place_of(value: float, accuracy: float) -> tuple[float, float]:
        return (left + width * value / longest,
                bottom - CHART * (accuracy - ACCURACIES[0]) / (ACCURACIES[-1] - ACCURACIES[0]))

    parts = []
    for accuracy in ACCURACIES:
        y = place_of(0, accuracy)[1]
        parts.append(line([(left, y), (left + width, y)], MUTED, 'stroke-opacity="0.3"'))
        if axis == 0:
            parts.append(text(left - 6, y + 4, f"{accuracy} %", MUTED, "end"))
    for tick in ticks:
        x = place_of(tick, ACCURACIES[0])[0]
        anchor = "end" if x > WIDTH - 30 else "middle"
        parts.append(text(x, bottom + 16, f"{tick:,}", MUTED, anchor))
    parts.append(text(left + width / 2, bottom + 34, name, INK, "middle"))
    for way, (_, colour, dashes) in WAYS.items():
        parts += curve(record["ways"][way]["points"], axis, colour, dashes, place_of)
    return parts


def updates_picture(record: Mapping[str, Any]) -> str:
    """The same curves twice: what counts is the number of updates and their length."""
    width = (WIDTH - CHART_LEFT - GAP - RIGHT) / 2
    parts = [*panel(record, 0, CHART_LEFT, width),
             *panel(record, 1, CHART_LEFT + width + GAP, width)]
    y = CHART_TOP + CHART + 60
    told = []
    for name, (words, colour, dashes) in WAYS.items():
        updates, _, accuracy = record["ways"][name]["points"][-1]
        words = f"{words}: {updates:,} updates, {percent(accuracy)} %"
        told.append(words)
        parts += [line([(CHART_LEFT, y - 4), (CHART_LEFT + 4 * LETTER, y - 4)], colour,
                       f'stroke-width="1.8" {dashes}'),
                  text(CHART_LEFT + 5 * LETTER, y, words)]
        y += 18
    return svg("updates", y, "Test accuracy of ConvNet on two ranks, over updates and images",
               "; ".join(told), parts)
