# SPDX-License-Identifier: Apache-2.0
"""Which pictures the page has, and the numbers in each.

drawing.py draws a picture when its SVG is read. A picture without data is omitted.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from matplotlib.figure import Figure

import digits
from claims import all_cpus, over_twin
from drawing import (
    PAGE_WIDTH, Bar, Dot, Line, Picture, axes_of, draw_bar, draw_bars, draw_dots, draw_lines,
    draw_stacks,
)
from environment import machine_line
from equality import WRONG, is_wrong
from intervals import Estimate, median_of
from results import Results, Row, Setup
from tables import curve_rows, name_text, place_cells, unusual, usual_row
from words import (
    IDEAS, INK, MUTED, NOT_RUN, OPPONENTS, PHASES, STAGE_COLOURS, STAGES, TWINS, USUAL, colour_of,
    idea_of, is_python, percent, significant, stage_of, twin_of,
)

Points = dict[tuple[Setup, str], list[tuple[float, Estimate]]]  # of each line, with its label
BEHIND_NAME = "Behind the name: processes x threads."


def precision_of(setup: Setup) -> str:
    return "" if setup.precision == "fp32" else f" {setup.precision}"


def label_of(results: Results, setup: Setup) -> str:
    return (f"{idea_of(setup.program)} {setup.world}x{setup.threads}{precision_of(setup)}"
            + " WRONG" * is_wrong(results, setup))


def plain_setups(results: Results, recipe: str, *kinds: str) -> list[Setup]:
    return [setup for setup in results.setups(recipe, kinds) if setup.width == 1]


def time_picture(results: Results, recipe: str) -> Picture | None:
    bars = []
    for setup in plain_setups(results, recipe, "slice"):
        row = results.row("slice", setup)
        time, percent = row.seconds(), row.counter("percent_of_floor")
        bars.append(Bar(label_of(results, setup), colour_of(setup.program),
                        is_python(setup.program), time,
                        significant(time.value) if time else row.missing,
                        time.value * percent / 100 if time and percent else None,
                        is_wrong(results, setup)))
    if not any(bar.estimate for bar in bars):
        return None
    numbers = "; ".join(f"{bar.label}: {bar.text}" + " s" * bool(bar.estimate) for bar in bars)
    caption = ("Filled: C++; outlined: its Python twin. " * any(bar.outlined for bar in bars)
               + f"{BEHIND_NAME} Whisker: 95 % interval. Upright line: the floor, which is the "
               "arithmetic at this machine's measured peak. Shorter is better.")
    return Picture(f"time-{recipe}", f"Time of 200 steps, {recipe}", numbers,
                   partial(draw_bars, "seconds for 200 steps", bars), caption)


def phase_picture(results: Results, recipe: str) -> Picture | None:
    stacks = []
    for setup in plain_setups(results, recipe, "phases"):
        parts = [results.row("phases", setup).counter(f"phase_{phase}_ms") for phase in PHASES]
        if any(part is not None for part in parts):
            stacks.append((label_of(results, setup), [part or 0.0 for part in parts]))
    if not stacks:
        return None
    numbers = "; ".join(
        f"{label}: " + ", ".join(f"{phase} {part:.2f} ms" for phase, part in zip(PHASES, parts))
        for label, parts in stacks)
    caption = ("Parts of one step, in their order: one run under LibTorch's profiler, steps 5 to "
               "8, rank 0. Data is everything from the optimizer to the first convolution. "
               + BEHIND_NAME)
    return Picture(f"phases-{recipe}", f"Where a step's time goes, {recipe}", numbers,
                   partial(draw_stacks, "milliseconds per step", stacks), caption)


def line_picture(name: str, title: str, caption: str, axes: tuple[str, str], found: Points,
                 **how: bool) -> Picture | None:
    if not found:
        return None
    lines = [Line(label, colour_of(setup.program), stage_of(setup.program),
                  is_python(setup.program), points) for (setup, label), points in found.items()]
    numbers = "; ".join(f"{line.label}: " + ", ".join(f"{y.value:.2f} at {x:g}"
                                                      for x, y in line.points) for line in lines)
    return Picture(name, title, numbers, partial(draw_lines, axes, lines, **how), caption)


def accuracy_picture(results: Results, recipe: str) -> Picture | None:
    """Without runs of fewer epochs the summary shows the same."""
    found: Points = {}
    for row in curve_rows(results, recipe) if results.of_kind("curve") else ():
        setup, accuracy, seconds = row.setup, row.accuracy(), row.counter("train_seconds")
        if setup.width == 1 and accuracy and seconds:
            found.setdefault((setup, label_of(results, setup)), []).append((seconds, accuracy))
    caption = ("Each point is a run of its own, of so many epochs. Whisker: 95 % interval. Hollow "
               "and dashed: Python. Up and to the left is better.")
    return line_picture(f"accuracy-{recipe}", f"Accuracy over training time, {recipe}", caption,
                        ("seconds of training (logarithmic)", "test accuracy, %"), found,
                        logarithmic=True)


def base_of(results: Results, setup: Setup) -> Setup:
    """What a speed-up is counted from: the program alone, else stage 0 or its twin, alone."""
    alone = replace(setup, world=1)
    row = results.row("slice", alone)
    if row and row.good:
        return alone
    return replace(alone, program=TWINS[0] if is_python(setup.program) else STAGES[0])


def speed_up(results: Results, setup: Setup, base: Setup | None) -> Estimate | None:
    """How many times as many samples a second as the base."""
    if base is None or setup == base:
        return base and Estimate(1.0)
    return results.ratio(setup, base, lambda run: run.counters.get("samples_per_second"))


def scaling_picture(results: Results, recipe: str) -> Picture | None:
    found: Points = {}
    for setup in plain_setups(results, recipe, "slice"):
        speed = speed_up(results, setup, base_of(results, setup)) if setup.world > 1 else None
        if speed:
            label = f"{idea_of(setup.program)}, x{setup.threads}{precision_of(setup)}"
            line = found.setdefault((replace(setup, world=1), label), [(1, Estimate(1.0))])
            line.append((setup.world, speed))
    caption = ("Samples a second, as multiples of one process with as many threads: of the same "
               "program, or of the single one if it did not run alone; x1 is one thread. Dotted: "
               "ideal.")
    return line_picture(f"scaling-{recipe}", f"Speed over world size, {recipe}", caption,
                        ("processes", "times one process"), found, ideal=True)


def width_picture(results: Results, recipe: str) -> Picture | None:
    """Only where the network was widened: the speed against stage 0 of the same width."""
    found: Points = {}
    for setup in results.setups(recipe, ("slice",)):
        base = all_cpus(results, recipe, STAGES[0], width=setup.width)
        if speed := speed_up(results, setup, base):
            place = (replace(setup, width=1), label_of(results, setup))
            found.setdefault(place, []).append((setup.width, speed))
    return line_picture(
        f"width-{recipe}", f"Speed over width, {recipe}",
        "Samples a second, as multiples of stage 0 with all threads at the same width.",
        ("width of the network", "times stage 0"),
        {place: points for place, points in found.items() if len(points) > 1})


def dot_of(results: Results, row: Row) -> Dot:
    """Its label: a digit for a stage, py and a digit for its twin, the name of another library. The
    legend has the names."""
    setup = row.setup
    name = "py" * is_python(setup.program) + str(stage_of(setup.program))
    if setup.program in OPPONENTS:
        name = "LT" if setup.program == USUAL else setup.program.removeprefix("python_")
    label = name + precision_of(setup) + " WRONG" * is_wrong(results, setup)
    return Dot(label, colour_of(setup.program), is_python(setup.program), row.seconds(),
               row.accuracy())


def summary_picture(results: Results) -> Picture | None:
    """Time against accuracy, of every whole run of a stage or twin, of every recipe."""
    found: dict[str, list[Row]] = {}
    for recipe in results.recipes():
        for setup in plain_setups(results, recipe, "full"):
            row = results.row("full", setup)
            if row.good and row.accuracy() and stage_of(setup.program) < len(STAGES):
                found.setdefault(recipe, []).append(row)
    if not found:
        return None
    panels = {recipe: [dot_of(results, row) for row in rows] for recipe, rows in found.items()}
    programs = {row.setup.program for rows in found.values() for row in rows}
    names = [(f"{place} {IDEAS[place]}", STAGE_COLOURS[place])
             for place in sorted(set(map(stage_of, programs)))]
    signs = "; ".join(filter(None, [
        "Filled: C++; outlined, py: Python" * any(map(is_python, programs)),
        "LT: LibTorch, used the usual way" * (USUAL in programs)]))
    caption = (f"From the start of a program to its end, with its test. {signs}"
               + ". " * bool(signs) + "Whiskers: 95 % intervals. Up and to the left is better.")
    numbers = ". ".join(f"{recipe}: " + "; ".join(
        f"{label_of(results, row.setup)}: {significant(row.seconds().value)} s, "
        f"{percent(row.accuracy().value)} %" for row in rows) for recipe, rows in found.items())
    return Picture("summary", "Time and accuracy of the whole runs", numbers,
                   partial(draw_dots, ("seconds (logarithmic)", "test accuracy, %"), panels, names),
                   caption)


def digits_picture(results: Results, recipe: str) -> Picture | None:
    """The test images that stage 0's whole run got wrong, if its record names them."""
    setup = next((setup for setup in plain_setups(results, recipe, "full")
                  if setup.program == STAGES[0]), None)
    runs = results.row("full", setup).of_seeds() if setup else {}
    seed = min(runs, default=0)
    words = runs[seed].label.get("misclassified") if runs else None
    if not words or not (found := digits.read(words)):
        return None
    shown, more = found[:digits.MOST], max(0, len(found) - digits.MOST)
    caption = ("Test images that stage 0 misclassified" + f" with seed {seed}" * (seed > 0)
               + f": label → prediction. {len(found)} of "
               "10,000" + f"; the first {digits.MOST}, and {more} more" * (more > 0) + ".")
    numbers = "; ".join(f"image {one.index}: {one.label} as {one.prediction}" for one in shown)
    return Picture(f"digits-{recipe}", f"Misclassified digits, {recipe}", numbers,
                   partial(digits.draw, shown), caption)


RECIPE_PICTURES = (time_picture, accuracy_picture, scaling_picture, phase_picture, width_picture,
                   digits_picture)


def recipe_pictures(results: Results, recipe: str) -> list[Picture]:
    return [*filter(None, (make(results, recipe) for make in RECIPE_PICTURES))]


def all_pictures(results: Results) -> list[Picture]:
    return [*filter(None, [summary_picture(results)]),
            *(one for recipe in results.recipes() for one in recipe_pictures(results, recipe))]


PAIR = 36.0  # points from stage to stage
SIDE = 0.21  # from the middle of a pair to the middle of a bar
LETTERS = 11.5
NAMES, LETTER = 140.0, 6.1  # points: room for the names, and for a letter


def row_pair(results: Results, stage: str) -> tuple[Row | None, Row | None]:
    """A stage as it is meant to run, and its twin that was started alike: of the rows that were
    repeated, else of the short runs."""
    found = [setup for setup in results.beside_twins()
             if setup.program == stage and setup.recipe == "basicnet"]
    if found:
        setup = min(found, key=unusual)
        return results.row("slice", setup), results.twin_row("slice", setup)
    row = usual_row(results, STAGES.index(stage))
    return row, row and results.twin_row("brief", row.setup)


def step_bar(results: Results, program: str, row: Row | None, faster: Estimate | None) -> Bar:
    """Its text is the description of the picture too."""
    time, wrong = row and median_of(row.step_ms), bool(row) and is_wrong(results, row.setup)
    text = row.missing if row else NOT_RUN
    if time:
        note = name_text(row.setup, row).removeprefix(program) + f", {WRONG}" * wrong
        text = f"{significant(time.value)} ms{note}"
    if faster:
        digits = 2 if faster.interval else 1
        ratio = faster.text(lambda value: f"{value:.{digits}f}").removesuffix(" (one run)")
        text += f", {ratio} × as fast"
    return Bar(program, colour_of(program), is_python(program), time, text, wrong=wrong)


def draw_pairs(pairs: Sequence[tuple[str, Sequence[Bar]]], below: str) -> Figure:
    height = len(pairs) + 0.35 * len(below.splitlines())
    figure, axes = axes_of(PAIR * height, PAGE_WIDTH)
    names = axes.get_yaxis_transform()
    for place, (how, bars) in enumerate(pairs):
        for bar, side in zip(bars, (-SIDE, SIDE)):
            draw_bar(axes, place + side, bar, 0.33, LETTERS)
        for text, side, colour in ((bars[0].label, -SIDE, INK), (how, SIDE, MUTED)):
            axes.text(-0.012, place + side, text, transform=names, ha="right", va="center",
                      fontsize=LETTERS, color=colour.light)
    if below:
        figure.supxlabel(below, x=0.01, ha="left", fontsize=10, color=MUTED.light)
    room = PAGE_WIDTH - NAMES  # for a bar and the text behind it
    axes.set(xlim=(0, max(bar.end / (1 - LETTER * (1 + len(bar.text)) / room)
                          for _, bars in pairs for bar in bars)), ylim=(len(pairs) - 0.5, -0.5))
    axes.set_axis_off()
    return figure


def stages_picture(results: Results, *, captioned: bool = False) -> Picture | None:
    """None where no twin compares. `captioned`: caption and machine are in the picture, for a page
    in Markdown."""
    found = {stage: rows for stage in STAGES if any(rows := row_pair(results, stage))}
    faster = {stage: row and over_twin(results, row) for stage, (row, _) in found.items()}
    if not any(faster.values()):
        return None
    pairs = [(", ".join(place_cells((row or twin).setup).values()),
              [step_bar(results, stage, row, faster[stage]),
               step_bar(results, twin_of(stage), twin, None)])
             for stage, (row, twin) in found.items()]
    several = any(ratio and ratio.interval for ratio in faster.values())
    runs = "with 95 % intervals" if several else "one run each"
    caption = (f"Milliseconds per training step of BasicNet, {runs}. Filled: C++; outlined: its "
               "Python twin. 2\u00a0x\u00a01: two processes of one thread.")
    below = textwrap.fill(f"{caption} {machine_line(results)}", 78) if captioned else ""
    return Picture("stages", "Each stage beside its Python twin",
                   "; ".join(f"{bar.label}: {bar.text}" for _, bars in pairs for bar in bars),
                   partial(draw_pairs, pairs, below), caption)
