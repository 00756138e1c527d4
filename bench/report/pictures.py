# SPDX-License-Identifier: Apache-2.0
"""Which pictures the page has, and the numbers in each.

A picture is chosen here, and drawn in drawing.py once its SVG is read. One that has nothing to show
is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import digits
from drawing import Bar, Dot, Line, Panel, Point, draw_bars, draw_dots, draw_lines, draw_stacks
from equality import WRONG, verdict_for
from intervals import Estimate
from results import Results, Row, Setup
from tables import curve_rows
from words import (
    IDEAS, PHASES, RUNG_COLOURS, STAGES, TWINS, USUAL, colour_of, idea_of, is_twin, percent, rung,
    significant,
)


@dataclass
class Picture:
    name: str  # the prefix of every id in it
    title: str
    caption: str
    description: str  # its numbers in words, for those who do not see it
    draw: Callable[[], str]  # takes a tenth of a second or more

    @cached_property
    def svg(self) -> str:
        return self.draw()


@dataclass
class Series:
    """Of a line picture: the points of one program under one set-up."""

    setup: Setup
    label: str
    points: list[Point] = field(default_factory=list)


HOW_BARS_READ = "Filled: C++; outlined: its Python twin. Behind the name: processes x threads."


def label_of(results: Results, setup: Setup) -> str:
    precision = "" if setup.precision == "fp32" else f" {setup.precision}"
    wrong = verdict_for(results, setup.recipe, setup.program).state == WRONG
    return (f"{idea_of(setup.program)} {setup.world}x{setup.threads}{precision}"
            + (" WRONG" if wrong else ""))


def plain_setups(results: Results, recipe: str, *kinds: str) -> list[Setup]:
    return [setup for setup in results.setups(recipe, kinds) if setup.width == 1]


def bar_of(results: Results, row: Row, estimate: Estimate | None, text: str,
           floor: float | None = None) -> Bar:
    setup = row.key.setup
    wrong = verdict_for(results, setup.recipe, setup.program).state == WRONG
    return Bar(label_of(results, setup), colour_of(setup.program), is_twin(setup.program),
               estimate, text, floor, wrong)


def told(bars: list[Bar], unit: str) -> str:
    return "; ".join(f"{bar.label}: {bar.text}{f' {unit}' if bar.estimate else ''}" for bar in bars)


def bar_picture(name: str, title: str, caption: str, unit: str, axis: str,
                bars: list[Bar]) -> Picture | None:
    if not any(bar.estimate for bar in bars):
        return None
    description = told(bars, unit)
    return Picture(name, title, caption, description,
                   partial(draw_bars, name, title, description, axis, bars))


# --- bars -------------------------------------------------------------------------------


def time_picture(results: Results, recipe: str) -> Picture | None:
    bars = []
    for setup in plain_setups(results, recipe, "slice"):
        row = results.row("slice", setup)
        time, percent = row.seconds(), row.counter("percent_of_floor")
        floor = time.value * percent / 100 if time and percent else None
        text = significant(time.value) if time else row.missing
        bars.append(bar_of(results, row, time, text, floor))
    caption = (f"{HOW_BARS_READ} Whisker: 95 % interval. Upright line: the floor, which is the "
               "arithmetic at this machine's measured peak. Shorter is better.")
    return bar_picture(f"time-{recipe}", f"Time of 200 steps, {recipe}", caption, "s",
                       "seconds for 200 steps", bars)


def memory_picture(results: Results, recipe: str) -> Picture | None:
    bars = []
    for setup in plain_setups(results, recipe, "slice", "full"):
        rows = [row for kind in ("full", "slice") if (row := results.row(kind, setup))]
        row = next((row for row in rows if row.counter("peak_rss_bytes") is not None), rows[0])
        peak = row.counter("peak_rss_bytes")
        estimate = Estimate(peak / 1e6) if peak is not None else None
        bars.append(bar_of(results, row, estimate, f"{peak / 1e6:.0f}" if estimate else row.missing))
    caption = (f"{HOW_BARS_READ} The sum of the peaks of the ranks; launcher and parent processes "
               "are not counted. Shorter is better.")
    return bar_picture(f"memory-{recipe}", f"Peak memory, {recipe}", caption, "MB",
                       "megabytes, all ranks", bars)


def code_pictures(results: Results) -> list[Picture]:
    """One, if lines were counted."""
    lines: dict[str, float] = {}
    for row in results.of_kind("full", "slice", "check"):
        counted = row.counter("user_lines")
        if counted is not None:
            lines[row.key.setup.program] = counted
    bars = [Bar(idea_of(program), colour_of(program), is_twin(program), Estimate(lines[program]),
                f"{lines[program]:.0f}")
            for program in sorted(lines, key=lambda name: (rung(name), is_twin(name), name))]
    caption = ("Lines that are code in the program's own source file: without blank lines, "
               "comments, #include and import. Filled: C++; outlined: Python.")
    picture = bar_picture("code", "Code a user writes", caption, "lines", "lines of code", bars)
    return [picture] if picture else []


def phase_picture(results: Results, recipe: str) -> Picture | None:
    name, title = f"phases-{recipe}", f"Where a step's time goes, {recipe}"
    stacks = []
    for setup in plain_setups(results, recipe, "phases"):
        row = results.row("phases", setup)
        parts = [row.counter(f"phase_{phase}_ms") for phase in PHASES]
        if any(part is not None for part in parts):
            stacks.append((label_of(results, setup), [part or 0.0 for part in parts]))
    if not stacks:
        return None
    description = "; ".join(
        f"{label}: " + ", ".join(f"{phase} {part:.2f} ms" for phase, part in zip(PHASES, parts))
        for label, parts in stacks)
    caption = ("Parts of one step, in their order: one run under LibTorch's profiler, steps 5 to "
               "8, rank 0. Data is everything from the optimizer to the first convolution. Behind "
               "the name: processes x threads.")
    return Picture(name, title, caption, description,
                   partial(draw_stacks, name, title, description, "milliseconds per step", stacks))


# --- lines ------------------------------------------------------------------------------


def line_picture(name: str, title: str, caption: str, axes: tuple[str, str], series: list[Series],
                 **how: bool) -> Picture:
    lines = [Line(one.label, colour_of(one.setup.program), rung(one.setup.program),
                  is_twin(one.setup.program), one.points) for one in series]
    description = "; ".join(
        f"{line.label}: " + ", ".join(
            f"{point.y.value:.2f} at {point.x:g}" for point in line.points)
        for line in lines)
    return Picture(name, title, caption, description,
                   partial(draw_lines, name, title, description, axes, lines, **how))


def accuracy_picture(results: Results, recipe: str) -> Picture | None:
    series: dict[Setup, Series] = {}
    for row in curve_rows(results, recipe):
        accuracy, seconds = row.accuracy(), row.counter("train_seconds")
        if row.key.setup.width == 1 and accuracy and seconds:
            start = Series(row.key.setup, label_of(results, row.key.setup))
            one = series.setdefault(row.key.setup, start)
            one.points.append(Point(seconds, accuracy))
    name, title = f"accuracy-{recipe}", f"Accuracy over training time, {recipe}"
    if not series:
        return None
    caption = ("Each point is a run of its own, of so many epochs. Whisker: 95 % interval. Hollow "
               "and dashed: Python. Up and to the left is better.")
    return line_picture(name, title, caption, ("seconds of training (logarithmic)",
                        "test accuracy, %"), list(series.values()), logarithmic=True)


def base_of(results: Results, setup: Setup) -> Setup:
    """What a speed-up is counted from: the program alone, else stage 0 or its twin, alone."""
    alone = replace(setup, world=1)
    row = results.row("slice", alone)
    if row and row.good:
        return alone
    return replace(alone, program=TWINS[0] if is_twin(setup.program) else STAGES[0])


def speed_up(results: Results, setup: Setup, base: Setup) -> Estimate | None:
    """How many times as many samples a second as the base."""
    if setup == base:
        return Estimate(1.0)
    return results.ratio(setup, base, lambda run: run.counters.get("samples_per_second"))


def scaling_series(results: Results, recipe: str) -> list[Series]:
    series: dict[Setup, Series] = {}
    for setup in plain_setups(results, recipe, "slice"):
        speed = speed_up(results, setup, base_of(results, setup)) if setup.world > 1 else None
        if speed is None:
            continue
        precision = "" if setup.precision == "fp32" else f" {setup.precision}"
        label = f"{idea_of(setup.program)}, x{setup.threads}{precision}"
        start = Series(setup, label, [Point(1, Estimate(1.0))])
        series.setdefault(replace(setup, world=1), start).points.append(Point(setup.world, speed))
    return list(series.values())


def scaling_picture(results: Results, recipe: str) -> Picture | None:
    name, title = f"scaling-{recipe}", f"Speed over world size, {recipe}"
    series = scaling_series(results, recipe)
    if not series:
        return None
    caption = ("Samples a second, as multiples of one process with as many threads: of the same "
               "program, or of the single one if it did not run alone; x1 is one thread. Dotted: "
               "ideal.")
    axes = ("processes", "times one process")
    return line_picture(name, title, caption, axes, series, ideal=True)


def width_picture(results: Results, recipe: str) -> Picture | None:
    """Only where the network was widened: the speed against stage 0 of the same width."""
    series: dict[Setup, Series] = {}
    for setup in results.setups(recipe, ("slice",)):
        bases = [other for other in results.setups(recipe, ("slice",)) if
                 (other.program, other.width, other.precision) == (STAGES[0], setup.width, "fp32")]
        base = max(bases, key=lambda other: other.threads, default=None)
        speed = speed_up(results, setup, base) if base else None
        if speed:
            start = Series(setup, label_of(results, setup))
            one = series.setdefault(replace(setup, width=1), start)
            one.points.append(Point(setup.width, speed))
    found = [one for one in series.values() if len(one.points) > 1]
    if not found:
        return None
    caption = "Samples a second, as multiples of stage 0 with all threads at the same width."
    return line_picture(f"width-{recipe}", f"Speed over width, {recipe}", caption,
                        ("width of the network", "times stage 0"), found)


# --- all whole runs, and what stage 0 got wrong -----------------------------------------


def dot_label(results: Results, setup: Setup) -> str:
    """A digit for a stage, py and a digit for its twin: the legend has the names."""
    name = "LT" if setup.program == USUAL else str(rung(setup.program))
    precision = "" if setup.precision == "fp32" else f" {setup.precision}"
    wrong = verdict_for(results, setup.recipe, setup.program).state == WRONG
    return "py" * is_twin(setup.program) + name + precision + " WRONG" * wrong


def dot_of(results: Results, row: Row) -> Dot:
    setup = row.key.setup
    return Dot(dot_label(results, setup), colour_of(setup.program), is_twin(setup.program),
               row.seconds(), row.accuracy())


def whole_runs(results: Results, recipe: str) -> list[Row]:
    """With a time and an accuracy; of programs of the ladder."""
    rows = [results.row("full", setup) for setup in plain_setups(results, recipe, "full")]
    return [row for row in rows if row.good and row.accuracy()
            and rung(row.key.setup.program) < len(STAGES)]


def told_dot(results: Results, row: Row) -> str:
    return (f"{label_of(results, row.key.setup)}: {significant(row.seconds().value)} s, "
            f"{percent(row.accuracy().value)} %")


def summary_picture(results: Results) -> Picture | None:
    """Time against accuracy, of every whole run of every recipe."""
    found = {recipe: rows for recipe in results.recipes() if (rows := whole_runs(results, recipe))}
    if not found:
        return None
    panels = [Panel(recipe, [dot_of(results, row) for row in rows])
              for recipe, rows in found.items()]
    there = {rung(row.key.setup.program) for rows in found.values() for row in rows}
    names = [(f"{place} {IDEAS[place]}", RUNG_COLOURS[place]) for place in sorted(there)]
    usual = any(row.key.setup.program == USUAL for rows in found.values() for row in rows)
    title = "Time and accuracy of the whole runs"
    caption = ("From the start of a program to its end, with its test. Filled: C++; outlined, py: "
               "Python" + "; LT: LibTorch, used the usual way" * usual + ". Whiskers: 95 % "
               "intervals. Up and to the left is better.")
    description = ". ".join(f"{recipe}: " + "; ".join(told_dot(results, row) for row in rows)
                            for recipe, rows in found.items())
    return Picture("summary", title, caption, description,
                   partial(draw_dots, "summary", title, description,
                           ("seconds (logarithmic)", "test accuracy, %"), panels, names))


def digits_picture(results: Results, recipe: str) -> Picture | None:
    """The test images that stage 0's whole run got wrong, if its record names them."""
    rows = [results.row("full", setup) for setup in plain_setups(results, recipe, "full")
            if setup.program == STAGES[0]]
    seeds = {seed: run.label.get("misclassified") for row in rows[:1]
             for seed, run in row.of_seeds().items()}
    seed = min(seeds, default=0)
    found = digits.read(seeds[seed]) if seeds.get(seed) else None
    if not found:
        return None
    more = max(0, len(found) - digits.MOST)
    title = f"Misclassified digits, {recipe}"
    caption = ("Test images that stage 0 misclassified" + f" with seed {seed}" * (seed > 0)
               + f": label → prediction. {len(found)} of "
               "10,000" + f"; the first {digits.MOST}, and {more} more" * (more > 0) + ".")
    description = "; ".join(f"image {one.index}: {one.label} as {one.prediction}"
                            for one in found[:digits.MOST])
    return Picture(f"digits-{recipe}", title, caption, description,
                   partial(digits.picture, f"digits-{recipe}", title, description,
                           found[:digits.MOST]))


RECIPE_PICTURES: tuple[Callable[[Results, str], Picture | None], ...] = (
    time_picture, accuracy_picture, scaling_picture, memory_picture, phase_picture, width_picture,
    digits_picture)


def recipe_pictures(results: Results, recipe: str) -> list[Picture]:
    return [picture for draw in RECIPE_PICTURES if (picture := draw(results, recipe))]
